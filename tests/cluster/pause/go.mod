// The program of a pod's sandbox.
module pgrole.dev/pause

go 1.26.0
