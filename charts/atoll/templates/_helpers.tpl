{{/* Labels of every object of the release. */}}
{{- define "atoll.labels" -}}
app.kubernetes.io/name: atoll
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What selects the operator's pod; immutable, so no version here. */}}
{{- define "atoll.selector" -}}
app.kubernetes.io/name: atoll
app.kubernetes.io/component: operator
{{- end }}

{{/* repository@digest of an image, else repository:tag, the chart's appVersion where no tag is given. */}}
{{- define "atoll.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Environment of every runtime pod, as JSON. */}}
{{- define "atoll.runtimeEnv" -}}
{{ merge (.lockMemory | default false | ternary (dict "ATOLL_LOCK_MEMORY" "true") dict) (.env | default dict) | toJson }}
{{- end }}

{{/* What the operator may do, cluster-wide or in one namespace. */}}
{{- define "atoll.rules" -}}
- apiGroups: [atoll.dev]
  resources: [trainingruns]
  verbs: [list, watch, delete]
- apiGroups: [atoll.dev]
  resources: [learnerunits]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [atoll.dev]
  resources: [trainingruns/status, learnerunits/status]
  verbs: [update]
# Needed for owner references with blockOwnerDeletion where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [atoll.dev]
  resources: [trainingruns/finalizers, learnerunits/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# Watches ask for metadata alone. The right to create pods already gives access to the namespace's Secrets.
- apiGroups: [""]
  resources: [services, configmaps, secrets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* Namespaces in which runs are reconciled, with commas; empty: all. */}}
{{- define "atoll.namespaces" -}}
{{- if not .Values.clusterWide }}{{ .Values.namespaces | default (list .Release.Namespace) | join "," }}{{ end -}}
{{- end }}
