{{/* The common part of the pods of all components. Argument: root. */}}
{{- define "runyard.pod" -}}
serviceAccountName: {{ .account | default (include "runyard.serviceAccount" .root) | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
securityContext: {{- mergeOverwrite $own (deepCopy (.root.Values.podSecurityContext | default dict)) | toYaml | nindent 2 }}
volumes:
  - { name: tmp, emptyDir: { sizeLimit: 1Gi } }
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The placement of the pods of a Deployment. Arguments: root, component, group, and values of the component. */}}
{{- define "runyard.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.topologySpread.keys }}
topologySpreadConstraints:
  {{- range .root.Values.topologySpread.keys }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "runyard.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end }}

{{/* The common part of all containers. Argument: root. */}}
{{- define "runyard.container" -}}
image: {{ include "runyard.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The sources of variables of all containers. */}}
{{- define "runyard.envFrom" -}}
{{- if or .Values.existingSecret .Values.extraEnvFrom }}
envFrom:
  {{- with .Values.existingSecret }}
  - secretRef: { name: {{ . }} }
  {{- end }}
  {{- with .Values.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The variables of a container, as entries of env. Arguments: root, and values of the component. own: variables that the chart sets, by
name. Variables of the values replace them. postgres: the secret and key of a Postgres URL that replaces the URL of the workers. */}}
{{- define "runyard.env" -}}
{{- $values := .root.Values -}}
{{- $postgres := .postgres | default (dict "existingSecret" $values.postgres.existingSecret "key" $values.postgres.key) -}}
{{- include "runyard.secretVariable" (dict "name" "RUNYARD_POSTGRES_URL" "from" $postgres) }}
{{- include "runyard.secretVariable" (dict "name" "RUNYARD_LISTEN_URL" "from" $values.postgres.listen) }}
{{- include "runyard.secretVariable" (dict "name" "RUNYARD_REDIS_URL" "from" $values.redis) }}
{{- include "runyard.secretVariable" (dict "name" "RUNYARD_WEBHOOK_SECRET" "from" $values.webhooks) }}
{{- $plain := mergeOverwrite (dict) (.own | default dict) (deepCopy $values.env) (deepCopy (dig "env" dict (.values | default dict))) }}
{{- range $values.extraEnv }}
{{- $_ := unset $plain .name }}
{{- end }}
{{- range $name, $value := $plain }}
- { name: {{ $name }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }} }
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "runyard.secretVariable" -}}
{{- if .from.existingSecret }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: { name: {{ .from.existingSecret }}, key: {{ .from.key }} }
{{- end }}
{{- end }}

{{/* The annotations of the pods of a Deployment. Arguments: root and port. With port, a Prometheus without the operator finds the pods by
these annotations. */}}
{{- define "runyard.podAnnotations" -}}
{{- $found := dict -}}
{{- with .port -}}
{{- $found = dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .) "prometheus.io/path" "/metrics" -}}
{{- end -}}
{{- with mergeOverwrite $found (deepCopy .root.Values.podAnnotations) -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}
