{{- /* The controller's rights, by purpose. Keep in sync with deploy/kustomize. */ -}}

{{- /* Own namespace: the Lease, and the CAs that PgServers name. */ -}}
{{- define "pgrole-controller.rules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "pgrole-controller.name" . | quote }}]
  verbs: [get, list, watch, update]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
{{- end -}}

{{- /* PgServers, which are cluster-scoped. */ -}}
{{- define "pgrole-controller.rules-servers" -}}
- apiGroups: [pgrole.dev]
  resources: [pgservers]
  verbs: [get, list, watch, patch]
- apiGroups: [pgrole.dev]
  resources: [pgservers/status]
  verbs: [patch]
{{- end -}}

{{- /* PgRoles, the Secrets that they name, and Events. */ -}}
{{- define "pgrole-controller.rules-roles" -}}
- apiGroups: [pgrole.dev]
  resources: [pgroles]
  verbs: [get, list, watch, patch]
- apiGroups: [pgrole.dev]
  resources: [pgroles/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: {{ ternary "[get]" "[get, list, watch]" (ne .Values.watch.namespace "") }}
{{- end -}}

{{- /* Connection Secrets. */ -}}
{{- define "pgrole-controller.rules-connection-secrets" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch, delete]
{{- end -}}

{{- /* Credentials that PgServers name, if rights on Secrets are limited to one namespace. */ -}}
{{- define "pgrole-controller.rules-credentials" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
{{- end -}}
