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

{{- /* "true" or "": a PostgreSQL database; database and keys outside of the data directory; a restore that stops the pods. */}}
{{- define "hub.onPostgres" -}}
{{- if or .Values.database.existingSecret .Values.database.url }}true{{ end }}
{{- end }}

{{- define "hub.isShared" -}}
{{- if and (include "hub.onPostgres" .) .Values.keys.existingSecret }}true{{ end }}
{{- end }}

{{- define "hub.restores" -}}
{{- if or .Values.restore.file .Values.restore.fromSQLite }}true{{ end }}
{{- end }}

{{- /* At most 52 characters, as a CronJob's name must have. */}}
{{- define "hub.backupName" -}}
{{- printf "%s-backup" (include "hub.name" . | trunc 45 | trimSuffix "-") }}
{{- end }}

{{- define "hub.backupClaim" -}}
{{- .Values.backup.existingClaim | default (include "hub.backupName" .) }}
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

{{- /* The address of each door and of the console's listener, as JSON, by the name of its port. */}}
{{- define "hub.addresses" -}}
{{- $found := dict "grpc" .Values.advertise.grpc "https" .Values.advertise.https }}
{{- with .Values.consoleSignIn.url }}
{{- $at := . | trimPrefix "https://" | trimSuffix "/" }}
{{- $_ := set $found "console" (ternary $at (printf "%s:443" $at) (regexMatch ":[0-9]+$" $at)) }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- define "hub.host" -}}
{{- regexReplaceAll ":[0-9]+$" . "" -}}
{{- end }}

{{- define "hub.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end }}

{{- /* What the schema cannot say, because it is about several values at once. */}}
{{- define "hub.checked" -}}
{{- with .Values.consoleSignIn }}
{{- if and .url (or (not .authenticator) (not .tlsSecret) (has (toString $.Values.console) (list "off" "false"))) }}
{{- fail "consoleSignIn.url needs consoleSignIn.authenticator, consoleSignIn.tlsSecret, and console: on or read-only" }}
{{- end }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (not (include "hub.isShared" .)) }}
{{- fail "replicas: more than one share a PostgreSQL database (database.existingSecret) and the hub's keys (keys.existingSecret)" }}
{{- end }}
{{- if and (not .Values.persistence.enabled) (not (include "hub.isShared" .)) }}
{{- fail "persistence.enabled: false loses the hub with its pod, unless database (existingSecret or url) and keys.existingSecret are elsewhere" }}
{{- end }}
{{- if and .Values.database.existingSecret .Values.database.url }}
{{- fail "database: give existingSecret or url, not both" }}
{{- end }}
{{- if and .Values.backup.enabled (not .Values.keys.existingSecret) (not .Values.backup.passphraseSecret) }}
{{- fail "backup.passphraseSecret: the hub's keys are in the data directory, and a backup without them cannot replace it" }}
{{- end }}
{{- if ne (empty .Values.backup.image) (and (empty .Values.backup.uploadCommand) (empty .Values.backup.downloadCommand)) }}
{{- fail "backup: image needs uploadCommand or downloadCommand, and these need image" }}
{{- end }}
{{- if and .Values.backup.enabled .Values.backup.image (not .Values.backup.uploadCommand) }}
{{- fail "backup.enabled: with backup.image it needs backup.uploadCommand" }}
{{- end }}
{{- if and .Values.restore.file .Values.backup.image (not .Values.backup.downloadCommand) (not .Values.backup.existingClaim) }}
{{- fail "restore.file: with backup.image it needs backup.downloadCommand, or backup.existingClaim with the file" }}
{{- end }}
{{- if and .Values.restore.file .Values.restore.fromSQLite }}
{{- fail "restore: give file or fromSQLite, not both" }}
{{- end }}
{{- if and .Values.restore.fromSQLite (not (and (include "hub.onPostgres" .) .Values.persistence.enabled)) }}
{{- fail "restore.fromSQLite needs the PostgreSQL database (database.existingSecret) and the volume with the SQLite database (persistence.enabled)" }}
{{- end }}
{{- if not (or (include "hub.restores" .) .Values.database.restored) }}
{{- include "hub.checkedRelease" . }}
{{- end }}
{{- if eq .Values.advertise.grpc .Values.advertise.https }}
{{- fail (printf "advertise: grpc and https are two doors, and %s can lead to one of them: give another port or another host" .Values.advertise.grpc) }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) }}
{{- fail "metrics.serviceMonitor: there is nothing to scrape without metrics.enabled" }}
{{- end }}
{{- if and .Values.metrics.prometheusRule.enabled (not .Values.metrics.enabled) }}
{{- fail "metrics.prometheusRule: its alerts need metrics.enabled and a scrape (metrics.serviceMonitor or your own)" }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- if eq (empty .Values.gateway.parentRefs) (empty .Values.gateway.className) }}
{{- fail "gateway: give parentRefs (Gateways that are there) or className (a Gateway of the hub's own), one of them" }}
{{- end }}
{{- end }}
{{- if or .Values.ingress.enabled .Values.gateway.enabled }}
{{- $way := ternary "ingress" "gateway" .Values.ingress.enabled }}
{{- $hosts := list }}
{{- $addresses := list }}
{{- range $door, $address := include "hub.addresses" . | fromJson }}
{{- $host := include "hub.host" $address }}
{{- $value := ternary "consoleSignIn.url" (printf "advertise.%s" $door) (eq $door "console") }}
{{- if or (regexMatch "^[0-9.]+$" $host) (contains ":" $host) }}
{{- fail (printf "%s: TLS is passed through by the name that a client asks for: %s needs a DNS name, not the address %s" $way $value $host) }}
{{- end }}
{{- $own := and $.Values.gateway.enabled (not $.Values.ingress.enabled) $.Values.gateway.className }}
{{- if or (has $address $addresses) (and (has $host $hosts) (not $own)) }}
{{- fail (printf "%s: TLS is passed through by the name that a client asks for: advertise.grpc, advertise.https and consoleSignIn.url need different hosts, not both %s" $way $host) }}
{{- end }}
{{- $hosts = append $hosts $host }}
{{- $addresses = append $addresses $address }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What would strand the agents of this release: another kind of database, which is empty, or the keys of another CA. With another ca.keyPlace the Secret has no CA or an old one. Helm finds nothing when it only renders; the hub itself then refuses to start. */}}
{{- define "hub.checkedRelease" -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "hub.name" .) }}
{{- if $set }}
{{- $pod := $set.spec.template.spec }}
{{- $wasOnPostgres := "" }}
{{- range (first $pod.containers).env }}{{ if eq .name "HUB_DATABASE_URL" }}{{ $wasOnPostgres = "true" }}{{ end }}{{ end }}
{{- if and (include "hub.onPostgres" .) (not $wasOnPostgres) }}
{{- fail "database: this release has its hub in SQLite. Move it into the PostgreSQL database with restore.fromSQLite=true (docs/how-to/on-kubernetes.md), or its agents are refused by a new hub. If you have restored it there yourself: database.restored=true" }}
{{- else if and $wasOnPostgres (not (include "hub.onPostgres" .)) }}
{{- fail "database: this release has its hub in PostgreSQL, and these values name no database (was --reuse-values forgotten?). To move it into SQLite set restore.file to a backup. If you have restored it there yourself: database.restored=true" }}
{{- end }}
{{- $admin := lookup "v1" "Secret" .Release.Namespace (include "hub.adminSecretName" .) }}
{{- $keys := dict }}
{{- with .Values.keys.existingSecret }}{{ $keys = lookup "v1" "Secret" $.Release.Namespace . }}{{ end }}
{{- $trust := get ($admin.data | default dict) "ca.crt" | b64dec }}
{{- if and $trust $keys.data (eq .Values.ca.keyPlace "file") }}
{{- $isTrusted := false }}
{{- range $file, $content := $keys.data }}
{{- if and (hasSuffix ".crt" $file) (contains (b64dec $content | trim) $trust) }}{{ $isTrusted = true }}{{ end }}
{{- end }}
{{- if not $isTrusted }}
{{- fail (printf "keys.existingSecret: the Secret %s has another CA than the hub of this release, whose agents it would refuse. Put that hub's own keys into it (docs/how-to/on-kubernetes.md)" .Values.keys.existingSecret) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Pieces of every pod that opens the hub's database and keys: environment, mounts and volumes. */}}
{{- define "hub.stateEnv" -}}
- name: HUB_DATA_DIR
  value: /var/lib/muster/hub
- name: HUB_CA_KEY_PLACE
  value: {{ .Values.ca.keyPlace }}
{{- if eq .Values.ca.keyPlace "secret" }}
- name: HUB_CA_KEY_SECRET
  value: {{ .Release.Namespace }}/{{ include "hub.caSecretName" . }}
{{- end }}
{{- if .Values.keys.existingSecret }}
- name: HUB_KEYS_DIR
  value: /etc/muster/keys
{{- end }}
{{- with include "hub.databaseSecretName" . }}
- name: HUB_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ include "hub.databaseSecretKey" $ }}
{{- end }}
{{- end }}

{{- define "hub.stateMounts" -}}
- name: data
  mountPath: /var/lib/muster
- name: tmp
  mountPath: /tmp
{{- if .Values.keys.existingSecret }}
- name: keys
  mountPath: /etc/muster/keys
  readOnly: true
{{- end }}
{{- if .Values.settings }}
- name: settings
  mountPath: /etc/muster/settings
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hub.stateVolumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.keys.existingSecret }}
- name: keys
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if .Values.settings }}
- name: settings
  configMap:
    name: {{ include "hub.name" . }}-settings
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hub.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{- /* A pod that runs once. Not the hub's own labels: its Service would send to it. */}}
{{- define "hub.jobMetadata" -}}
labels:
  app.kubernetes.io/name: {{ .root.Values.nameOverride | default .root.Chart.Name }}-{{ .component }}
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/component: {{ .component }}
  app.kubernetes.io/part-of: muster
{{- end }}

{{- define "hub.jobPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- include "hub.ids" . | nindent 2 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A container of such a pod, as the hub's or with the image and environment of backup. */}}
{{- define "hub.jobContainer" -}}
- name: {{ .name }}
  {{- if .command }}
  image: {{ .root.Values.backup.image | quote }}
  {{- else }}
  image: {{ include "hub.image" .root | quote }}
  {{- end }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  {{- if .command }}
  command:
    {{- toYaml .command | nindent 4 }}
  env:
    - name: HOME
      value: /tmp
    - name: FILE
      value: {{ .root.Values.restore.file | quote }}
    {{- with .root.Values.backup.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- else }}
  command: ["sh", "-euc"]
  args:
    - |
      {{- .script | nindent 6 }}
  env:
    {{- include "hub.stateEnv" .root | nindent 4 }}
    {{- with .root.Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "hub.containerSecurity" .root | nindent 4 }}
  {{- with .root.Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - name: backups
      mountPath: /backups
    {{- if .command }}
    - name: tmp
      mountPath: /tmp
    {{- else }}
    {{- include "hub.stateMounts" .root | nindent 4 }}
    {{- if .root.Values.backup.passphraseSecret }}
    - name: passphrase
      mountPath: /etc/muster/passphrase
      readOnly: true
    {{- end }}
    {{- end }}
{{- end }}

{{- /* Volumes of such a pod, but for backups; data: the hub's volume where something of the hub is in it. */}}
{{- define "hub.jobVolumes" -}}
{{ include "hub.stateVolumes" .root }}
{{- with .root.Values.backup.passphraseSecret }}
- name: passphrase
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
- name: data
  {{- if .needsData }}
  persistentVolumeClaim:
    claimName: data-{{ include "hub.name" .root }}-0
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
