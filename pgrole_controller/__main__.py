from pgrole_controller.cli import main

if __name__ == "__main__":
    main()
