{{- define "pgrole-controller.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "%s-%s" .Chart.Name .Release.Name }}{{ end -}}{{- /* nor begin with a digit */ -}}
{{- $name | replace "." "-" | trunc 43 | trimAll "-" -}}{{- /* a release may have dots in its name, a Service may not */ -}}
{{- end -}}
{{- end -}}

{{- define "pgrole-controller.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* Other pods than the controller's: its Service and policies must not select them. */ -}}
{{- define "pgrole-controller.console-selector" -}}
app.kubernetes.io/name: pgrole-console
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "pgrole-controller.labels" -}}
{{ include "pgrole-controller.merged-labels" (dict "root" . "selector" (include "pgrole-controller.selector" .)) }}
{{- end -}}

{{- define "pgrole-controller.labels-with" -}}
{{ merge (include "pgrole-controller.selector" .root | fromYaml) (.more | default dict) (include "pgrole-controller.labels" .root | fromYaml) | toYaml }}
{{- end -}}

{{- define "pgrole-controller.console-labels" -}}
{{ include "pgrole-controller.merged-labels" (dict "root" . "selector" (include "pgrole-controller.console-selector" .)) }}
{{- end -}}

{{- /* Each label once: `labels` of the values replace the chart's own, but not those that are selected. */ -}}
{{- define "pgrole-controller.merged-labels" -}}
{{ merge (fromYaml .selector) (.root.Values.labels | default dict) (include "pgrole-controller.common-labels" .root | fromYaml) | toYaml }}
{{- end -}}

{{- define "pgrole-controller.common-labels" -}}
app.kubernetes.io/part-of: pgrole
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pgrole-controller.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "pgrole-controller.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "pgrole-controller.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The seconds of a duration such as 1h30m. */ -}}
{{- define "pgrole-controller.seconds" -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) $factor) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{- /* Metadata of an object named with the full name and `suffix`; empty `namespace`: cluster-scoped. */ -}}
{{- define "pgrole-controller.metadata" -}}
metadata:
  name: {{ print (include "pgrole-controller.name" .root) .suffix | quote }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "pgrole-controller.labels" .root | nindent 4 }}
{{- end -}}

{{- /* A role with the rules of `suffix` (_rules.tpl), and its binding; empty `namespace`: a ClusterRole. */ -}}
{{- define "pgrole-controller.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
{{ include "pgrole-controller.metadata" . }}
rules:
  {{- include (print "pgrole-controller.rules" .suffix) .root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
{{ include "pgrole-controller.metadata" . }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ print (include "pgrole-controller.name" .root) .suffix | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ include "pgrole-controller.account" .root | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}
