{{- define "hub.name" -}}
{{- $base := .Values.nameOverride | default .Chart.Name }}
{{- $name := printf "%s-%s" .Release.Name $base }}
{{- if contains $base .Release.Name }}{{ $name = .Release.Name }}{{ end }}
{{- .Values.fullnameOverride | default $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "hub.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "hub.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "hub.name" .) }}
{{- end }}

{{- define "hub.certAgentName" -}}
{{- printf "%s-cert" (include "hub.name" .) }}
{{- end }}

{{- define "hub.asksTheCluster" -}}
{{- if or .Values.adminKubeconfig.enabled .Values.aggregation.enabled (eq .Values.election.lock "kubernetes") .Values.kubernetesCA.enabled (eq .Values.ca.keyPlace "secret") }}true{{ else }}false{{ end }}
{{- end }}

{{- define "hub.leaseName" -}}
{{- .Values.election.name | default (include "hub.name" .) }}
{{- end }}

{{- define "hub.caSecretName" -}}
{{- .Values.ca.secret | default (printf "%s-ca" (include "hub.name" .)) -}}
{{- end }}

{{- define "hub.adminSecretName" -}}
{{- .Values.adminKubeconfig.secret | default (printf "%s-admin" (include "hub.name" .)) -}}
{{- end }}

{{- define "hub.databaseSecretName" -}}
{{- if .Values.database.url }}{{ include "hub.name" . }}-database{{ else }}{{ .Values.database.existingSecret }}{{ end }}
{{- end }}

{{- define "hub.databaseSecretKey" -}}
{{- if .Values.database.url }}url{{ else }}{{ .Values.database.key }}{{ end }}
{{- end }}

{{- define "hub.groupSuffix" -}}
{{- .Values.settings.api_group_suffix | default "open-cluster-management.io" -}}
{{- end }}

{{- /* User and groups of a pod; those that are null are the cluster's to choose. */}}
{{- define "hub.ids" -}}
{{- range $name, $id := .Values.securityContext }}
{{- if not (kindIs "invalid" $id) }}
{{ $name }}: {{ int64 $id }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hub.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
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

{{- /* The head of an object: metadata without the name. */}}
{{- define "hub.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "hub.labels" . | nindent 2 }}
{{- end }}

{{- /* The subject of every binding. */}}
{{- define "hub.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "hub.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "hub.grpcHost" -}}
{{- regexReplaceAll ":[0-9]+$" .Values.advertise.grpc "" -}}
{{- end }}

{{- define "hub.httpsHost" -}}
{{- regexReplaceAll ":[0-9]+$" .Values.advertise.https "" -}}
{{- end }}

{{- define "hub.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end }}

{{- /* What the schema cannot say, because it is about several values at once. */}}
{{- define "hub.checked" -}}
{{- $shared := or .Values.database.existingSecret .Values.database.url }}
{{- if and (gt (int .Values.replicas) 1) (not (and $shared .Values.keys.existingSecret)) }}
{{- fail "replicas: more than one share a PostgreSQL database (database.existingSecret) and the hub's keys (keys.existingSecret)" }}
{{- end }}
{{- if and (not .Values.persistence.enabled) (not (and $shared .Values.keys.existingSecret)) }}
{{- fail "persistence.enabled: false loses the hub with its pod, unless database (existingSecret or url) and keys.existingSecret are elsewhere" }}
{{- end }}
{{- if and .Values.database.existingSecret .Values.database.url }}
{{- fail "database: give existingSecret or url, not both" }}
{{- end }}
{{- if eq .Values.advertise.grpc .Values.advertise.https }}
{{- fail (printf "advertise: grpc and https are two doors, and %s can lead to one of them: give another port or another host" .Values.advertise.grpc) }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) }}
{{- fail "metrics.serviceMonitor: there is nothing to scrape without metrics.enabled" }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- if eq (empty .Values.gateway.parentRefs) (empty .Values.gateway.className) }}
{{- fail "gateway: give parentRefs (Gateways that are there) or className (a Gateway of the hub's own), one of them" }}
{{- end }}
{{- end }}
{{- if or .Values.ingress.enabled .Values.gateway.enabled }}
{{- $way := ternary "ingress" "gateway" .Values.ingress.enabled }}
{{- range $door, $host := dict "grpc" (include "hub.grpcHost" .) "https" (include "hub.httpsHost" .) }}
{{- if or (regexMatch "^[0-9.]+$" $host) (contains ":" $host) }}
{{- fail (printf "%s: TLS is passed through by the name that a client asks for: advertise.%s needs a DNS name, not the address %s" $way $door $host) }}
{{- end }}
{{- end }}
{{- $own := and .Values.gateway.enabled (not .Values.ingress.enabled) .Values.gateway.className }}
{{- if and (eq (include "hub.grpcHost" .) (include "hub.httpsHost" .)) (not $own) }}
{{- fail (printf "%s: TLS is passed through by the name that a client asks for: advertise.grpc and advertise.https need different hosts, not both %s" $way (include "hub.grpcHost" .)) }}
{{- end }}
{{- end }}
{{- end }}
