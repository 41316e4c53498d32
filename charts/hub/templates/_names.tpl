{{- define "hub.name" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name }}
{{- if contains .Chart.Name .Release.Name }}{{ $name = .Release.Name }}{{ end }}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "hub.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "hub.name" .) }}
{{- end }}

{{- define "hub.certAgentName" -}}
{{- printf "%s-cert" (include "hub.name" .) }}
{{- end }}

{{- define "hub.asksTheCluster" -}}
{{- if or (eq .Values.election.lock "kubernetes") .Values.kubernetesCA.enabled (eq .Values.ca.keyPlace "secret") }}true{{ else }}false{{ end }}
{{- end }}

{{- define "hub.leaseName" -}}
{{- .Values.election.name | default (include "hub.name" .) }}
{{- end }}

{{- define "hub.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hub.labels" -}}
{{ include "hub.selector" . }}
app.kubernetes.io/component: hub
app.kubernetes.io/part-of: muster
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "hub.caSecretName" -}}
{{- .Values.ca.secret | default (printf "%s-ca" (include "hub.name" .)) -}}
{{- end -}}
