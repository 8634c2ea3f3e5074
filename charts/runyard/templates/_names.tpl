{{/* The beginning of all names. A Job, the longest name, has room for "-migrate-" and a revision. A Service has no dot in its name. */}}
{{- define "runyard.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* The labels that select the pods of a component. Takes root and component, and for a named group of workers group. */}}
{{- define "runyard.selector" -}}
app.kubernetes.io/name: runyard
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .group }}
runyard/group: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The labels of an object. Takes what runyard.selector takes. */}}
{{- define "runyard.labels" -}}
{{ include "runyard.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "runyard.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "runyard.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "runyard.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The name of the API's Service. It does not end with "-api": for a Service runyard-api, Kubernetes sets
RUNYARD_API_PORT=tcp://… in the pods of the namespace, and an API process would read this variable as its port. */}}
{{- define "runyard.service" -}}
{{ include "runyard.fullname" . }}-http
{{- end }}

{{- define "runyard.tokenSecret" -}}
{{- .Values.api.tokenSecret | default (printf "%s-api-token" (include "runyard.fullname" .)) -}}
{{- end }}

{{/* The groups of workers as JSON: the values of each group by its name. The only group without `workers` has no name. */}}
{{- define "runyard.groups" -}}
{{- $groups := dict -}}
{{- range $name, $own := .Values.workers -}}
{{- $_ := set $groups $name (mergeOverwrite (deepCopy $.Values.worker) (deepCopy ($own | default dict))) -}}
{{- end -}}
{{- if not $groups -}}
{{- $_ := set $groups "" .Values.worker -}}
{{- end -}}
{{- toJson $groups -}}
{{- end }}

{{- define "runyard.worker" -}}
{{ include "runyard.fullname" .root }}-worker{{ with .group }}-{{ . }}{{ end }}
{{- end }}

{{/* The secret and key of the workers' Postgres URL, as JSON. */}}
{{- define "runyard.postgres" -}}
{{- if .Values.postgres.existingSecret -}}
{{- dict "name" .Values.postgres.existingSecret "key" .Values.postgres.key | toJson -}}
{{- else -}}
{{- dict "name" .Values.existingSecret "key" "RUNYARD_POSTGRES_URL" | toJson -}}
{{- end -}}
{{- end }}
