"""Names of Kubernetes' objects, as patterns. Apart from the models, since settings are read before any of those."""

#: Of names of objects, as Kubernetes has them: DNS subdomains.
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

#: Of the keys of Secrets and ConfigMaps.
OBJECT_KEY = r"^[-._a-zA-Z0-9]+$"
