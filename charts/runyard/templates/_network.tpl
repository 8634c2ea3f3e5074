{{/* The egress rules of all pods. */}}
{{- define "runyard.egress" -}}
{{- if .Values.networkPolicy.egress -}}
- ports:
    - { port: 53, protocol: UDP }
    - { port: 53, protocol: TCP }
{{ toYaml .Values.networkPolicy.egress }}
{{- else if .Values.networkPolicy.allowMetadataServer -}}
- {}
{{- else -}}
- to:
    - ipBlock: { cidr: 0.0.0.0/0, except: [169.254.169.254/32] }
    - ipBlock: { cidr: "::/0", except: ["fd00:ec2::254/128"] }
    - namespaceSelector: {} # in some networks an ipBlock does not cover pods
{{- end -}}
{{- end }}

{{/* An ingress rule. Arguments: port, and from as a list of peers. */}}
{{- define "runyard.ingressRule" -}}
- ports:
    - port: {{ .port }}
  {{- with .from }}
  from: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
