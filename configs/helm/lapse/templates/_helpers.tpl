{{/* Names. */}}
{{- define "lapse.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lapse.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "lapse.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lapse.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lapse.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "lapse.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What selects a component's pods: (dict "root" $ "component" "expirer"). */}}
{{- define "lapse.selector" -}}
app.kubernetes.io/name: {{ include "lapse.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "lapse.labels" -}}
{{ include "lapse.selector" . }}
app.kubernetes.io/part-of: lapse
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "lapse.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The queue prefix. */}}
{{- define "lapse.prefix" -}}
{{- dig "prefix" "lapse" .Values.config -}}
{{- end -}}

{{/* Whether nothing waits in the broker. */}}
{{- define "lapse.sweepOnly" -}}
{{- if eq (dig "delay" "mechanism" "ladder" .Values.config) "sweep" -}}true{{- end -}}
{{- end -}}

{{/* A component's secrets as JSON: all of them, then its own, then the name of the Secret.
     (dict "root" $ "component" "expirer") */}}
{{- define "lapse.secrets" -}}
{{- $own := get (get .root.Values .component) "secrets" -}}
{{- $secrets := mergeOverwrite (deepCopy .root.Values.secrets) (deepCopy $own) -}}
{{- if eq .component "migrate" -}}
{{- $_ := set $secrets "files" (pick $secrets.files "database.password") -}}
{{- $_ := set $secrets "variables" dict -}}
{{- end -}}
{{- $name := $secrets.existing | default (printf "%s-%s" (include "lapse.fullname" .root) .component) -}}
{{- if not $secrets.existing -}}
{{- $data := dict -}}
{{- range concat (values $secrets.files) (values $secrets.variables) -}}
{{- $_ := set $data . (get $secrets.data . | required (printf "secrets.existing: must name a Secret, or secrets.data must have %s" .)) -}}
{{- end -}}
{{- $_ := set $secrets "data" $data -}}
{{- end -}}
{{- $_ := set $secrets "name" $name -}}
{{- toJson $secrets -}}
{{- end -}}

{{/* A component's configuration file. */}}
{{- define "lapse.config" -}}
{{- $own := get (get .root.Values .component) "config" -}}
{{- $config := mergeOverwrite (deepCopy .root.Values.config) (deepCopy $own) -}}
{{- $_ := required "config.database.address: must be set, to host:port of the database" (dig "database" "address" "" $config) -}}
{{- $_ := set $config "installation" (required "installation: must be set" .root.Values.installation) -}}
{{- if ne .component "migrate" -}}
{{- $_ := set $config "admin" (merge (dict "address" (printf ":%d" (include "lapse.adminPort" . | int))) (get $config "admin" | default dict)) -}}
{{- end -}}
{{- if eq .component "publisher" -}}
{{- $_ := set $config "api" (merge (dict "address" ":8080") (get $config "api" | default dict)) -}}
{{- end -}}
{{- range $path, $key := (include "lapse.secrets" . | fromJson).files -}}
{{- $at := $config -}}
{{- $parts := splitList "." $path -}}
{{- range initial $parts -}}
{{- if not (get $at .) -}}{{- $_ := set $at . dict -}}{{- end -}}
{{- $at = get $at . -}}
{{- end -}}
{{- $_ := set $at (printf "%s_file" (last $parts)) (printf "/run/secrets/lapse/%s" $key) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "lapse.adminPort" -}}
{{- get (dict "publisher" 9101 "expirer" 9102 "notifier" 9103) .component -}}
{{- end -}}

{{/* The port in config.database.address. */}}
{{- define "lapse.databasePort" -}}
{{- dig "database" "address" ":3306" .Values.config | splitList ":" | last -}}
{{- end -}}

{{- define "lapse.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "lapse.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The variables from the Secret. */}}
{{- define "lapse.variables" -}}
{{- $secrets := include "lapse.secrets" . | fromJson -}}
{{- range $variable, $key := $secrets.variables }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $secrets.name }}
      key: {{ $key }}
{{- end }}
{{- end -}}

{{/* The volumes of a component: its file, and those of the Secret that it names. */}}
{{- define "lapse.volumes" -}}
{{- $secrets := include "lapse.secrets" . | fromJson -}}
- name: config
  configMap:
    name: {{ include "lapse.fullname" .root }}-{{ .component }}
- name: secrets
  secret:
    secretName: {{ $secrets.name }}
    defaultMode: 0440
    items:
      {{- range values $secrets.files | uniq | sortAlpha }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end -}}
