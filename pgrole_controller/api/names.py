"""Names of Kubernetes objects, as patterns of CRDs and as functions.

Apart from the models, since settings are read before any of those.
"""

import re

#: Of names of objects, as Kubernetes has them: DNS subdomains.
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

#: Of the keys of Secrets and ConfigMaps.
OBJECT_KEY = r"^[-._a-zA-Z0-9]+$"

#: In characters: of names of objects and of keys, and of labels.
LONGEST_NAME = 253
LONGEST_LABEL = 63

_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_object_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and re.fullmatch(OBJECT_NAME, text) is not None


def is_namespace_name(text: str) -> bool:
    """A DNS label."""
    return len(text) <= LONGEST_LABEL and "." not in text and is_object_name(text)


def is_key(text: str) -> bool:
    """Of `data` in a Secret or ConfigMap; k8s.io/apimachinery/pkg/util/validation: IsConfigMapKey."""
    fits = len(text) <= LONGEST_NAME and re.fullmatch(OBJECT_KEY, text) is not None
    return fits and text != "." and not text.startswith("..")


def is_label_key(text: str) -> bool:
    """Of labels and annotations; IsQualifiedName there."""
    domain, slash, name = text.rpartition("/")
    return (not slash or is_object_name(domain)) and name != "" and is_label_value(name)


def is_label_value(text: str) -> bool:
    """IsValidLabelValue there."""
    return text == "" or (len(text) <= LONGEST_LABEL and _WORD.fullmatch(text) is not None)
