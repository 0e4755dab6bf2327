"""What users write: the kinds as pydantic models, and the CustomResourceDefinitions generated from them."""
