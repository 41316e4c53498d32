{{- define "spoke.name" -}}
{{- $base := .Values.nameOverride | default .Chart.Name }}
{{- $name := printf "%s-%s" .Release.Name $base }}
{{- if contains $base .Release.Name }}{{ $name = .Release.Name }}{{ end }}
{{- .Values.fullnameOverride | default $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "spoke.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "spoke.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "spoke.name" .) }}
{{- end }}

{{- /* Of what has no namespace: two releases of one name must not meet. */}}
{{- define "spoke.clusterWideName" -}}
{{- printf "%s-%s" (include "spoke.name" .) .Release.Namespace }}
{{- end }}

{{- define "spoke.leaseName" -}}
{{- .Values.leaderElection.resourceName | default "spoke-agent" }}
{{- end }}

{{- define "spoke.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "spoke.labels" -}}
{{ include "spoke.selector" . }}
app.kubernetes.io/component: spoke
app.kubernetes.io/part-of: muster
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The head of an object: metadata without the name. */}}
{{- define "spoke.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "spoke.labels" . | nindent 2 }}
{{- end }}

{{- /* The subject of every binding. */}}
{{- define "spoke.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "spoke.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* User and groups of a pod; those that are null are the cluster's to choose. */}}
{{- define "spoke.ids" -}}
{{- range $name, $id := .Values.securityContext }}
{{- if not (kindIs "invalid" $id) }}
{{ $name }}: {{ int64 $id }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the agent's pod and the test's have in common: settings, and where they find their files. */}}
{{- define "spoke.settings" -}}
- name: SPOKE_BOOTSTRAP_KUBECONFIG
  value: /spoke/bootstrap/kubeconfig
# A comma alone: none. An empty variable would leave the default.
- name: SPOKE_ADDON_NAMESPACES
  value: {{ ternary (join "," .Values.addOns.namespaces) "" .Values.addOns.enabled | default "," | quote }}
- name: SPOKE_LEADER_ELECT
  value: {{ .Values.leaderElection.enabled | quote }}
- name: SPOKE_LEADER_ELECT_RESOURCE_NAME
  value: {{ include "spoke.leaseName" . | quote }}
{{- with .Values.bootstrap.furtherSecrets }}
- name: SPOKE_BOOTSTRAP_KUBECONFIG_SECRET
  value: {{ join "," . | quote }}
{{- end }}
{{- if .Values.hosted.kubeconfigSecret }}
- name: SPOKE_SPOKE_KUBECONFIG
  value: /spoke/config/kubeconfig
{{- if .Values.attestation.enabled }}
- name: SPOKE_ATTESTATION_SERVICE_ACCOUNT
  value: {{ .Release.Namespace }}/{{ include "spoke.serviceAccountName" . }}
{{- end }}
{{- end }}
- name: SPOKE_COMPONENT_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .Values.clusterName }}
- name: SPOKE_CLUSTER_NAME
  value: {{ . | quote }}
{{- end }}
{{- with .Values.externalServerURLs }}
- name: SPOKE_SPOKE_EXTERNAL_SERVER_URLS
  value: {{ join "," . | quote }}
{{- end }}
- name: SPOKE_REGISTRATION_DRIVER
  value: {{ .Values.registrationDriver }}
- name: SPOKE_LOG_LEVEL
  value: {{ .Values.log.level }}
- name: SPOKE_LOG_FORMAT
  value: {{ .Values.log.format }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "spoke.mounts" -}}
- name: bootstrap
  mountPath: /spoke/bootstrap
  readOnly: true
{{- if .Values.hosted.kubeconfigSecret }}
- name: managed-cluster
  mountPath: /spoke/config
  readOnly: true
{{- end }}
{{- if .Values.settings }}
- name: settings
  mountPath: /spoke/settings
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "spoke.volumes" -}}
- name: bootstrap
  secret:
    secretName: {{ .Values.bootstrap.existingSecret }}
    # Once the cluster has joined, the bootstrap credential may be deleted, unless there are further hubs: it takes this one off the list.
    optional: true
    defaultMode: 0440
{{- with .Values.hosted.kubeconfigSecret }}
- name: managed-cluster
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if .Values.settings }}
- name: settings
  configMap:
    name: {{ include "spoke.name" . }}-settings
{{- end }}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What the schema cannot say, because it is about several values at once. */}}
{{- define "spoke.checked" -}}
{{- if and (not .Values.leaderElection.enabled) (gt (int .Values.replicas) 1) }}
{{- fail "replicas: of several processes of an agent one may work, which needs leaderElection.enabled" }}
{{- end }}
{{- if and .Values.hosted.rightsOnly .Values.hosted.kubeconfigSecret }}
{{- fail "hosted: rightsOnly is for the cluster that is reported, kubeconfigSecret for the one where the agent runs: one of them in one release" }}
{{- end }}
{{- end }}
