{{/* The beginning of all names. The longest name is the name of the Job: it adds "-migrate-" and a revision. The name of a Service has no
dot. */}}
{{- define "runyard.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* The labels that select the pods of a component. Arguments: root and component. A named group of workers also gives group. */}}
{{- define "runyard.selector" -}}
app.kubernetes.io/name: runyard
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .group }}
runyard/group: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The labels of an object. Arguments: as for runyard.selector. */}}
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

{{/* The groups of workers as JSON: the values of each group by its name. Without `workers`, there is one group, and it has no name. */}}
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
