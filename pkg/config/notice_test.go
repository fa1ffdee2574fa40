package config_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/notice/policy"
)

func notifier(yaml string, environ ...string) (config.Notice, error) {
	c, _, err := config.Load(config.DefaultNotifier(), config.Sources{File: "n.yaml", YAML: []byte(yaml), Environ: append(given(), environ...)})

	return c.Notice, err
}

func TestNoticeListsAndMaps(t *testing.T) {
	const yaml = `
notice:
  channels: [inbox, sms]
  policy:
    rules:
      - {kinds: [expiring], offsets: [-1d], min_value: 9900, currency: CNY, channels: ["sms>push"]}
      - channels: [inbox]
    quiet: {sms: 22:00-07:30}
    caps: {sms: {day: 2}}
  limits:
    sms: {rate: 7.5, deadline: 3s}
  gateway:
    sms:
      url: https://sms.example/v1
      key_id: k1
      key: a key of more than sixteen bytes
      templates: [{kind: expiring, offset: -1d, locale: zh-CN, key: SMS_1}]
`
	got, err := notifier(yaml)
	require.NoError(t, err)
	require.Equal(t, []policy.Rule{
		{Kinds: []string{"expiring"}, Offsets: []string{"-1d"}, MinValue: 9900, Currency: "CNY", Channels: []string{"sms>push"}},
		{Channels: []string{"inbox"}},
	}, got.Policy.Rules, "a list replaces its default")
	require.Equal(t, "22:00-07:30", got.Policy.Quiet["sms"])
	require.Equal(t, config.DefaultNotice().Policy.Quiet["email"], got.Policy.Quiet["email"], "a map adds to it")
	require.Equal(t, policy.Cap{Day: 2, Week: 3}, got.Policy.Caps["sms"], "what a member does not name it keeps")
	require.Equal(t, 7.5, got.Limits.SMS.Rate) //nolint:testifylint // the number is exact
	require.Equal(t, config.DefaultNotice().Limits.SMS.Concurrency, got.Limits.SMS.Concurrency)
	require.Equal(t, []gateway.Template{{Kind: "expiring", Offset: "-1d", Locale: "zh-CN", Key: "SMS_1"}}, got.Gateway.SMS.Templates)

	over, err := notifier(yaml,
		`LAPSE__NOTICE__POLICY__RULES=[{"kinds":["expired"],"channels":["inbox","log"]}]`,
		`LAPSE__NOTICE__POLICY__QUIET={"push":"never"}`,
		`LAPSE__NOTICE__GATEWAY__SMS__TEMPLATES=[{"key":"SMS_2"}]`,
		`LAPSE__NOTICE__LIMITS__SMS__DEADLINE=2s`,
	)
	require.NoError(t, err)
	require.Equal(t, []policy.Rule{{Kinds: []string{"expired"}, Channels: []string{"inbox", "log"}}}, over.Policy.Rules)
	require.Equal(t, map[string]string{"sms": "21:00-08:00", "push": "never", "email": "22:00-08:00"}, over.Policy.Quiet)
	require.Equal(t, []gateway.Template{{Key: "SMS_2"}}, over.Gateway.SMS.Templates)
	require.Equal(t, 2*time.Second, over.Limits.SMS.Deadline)

	// What is printed is what was read, secrets apart.
	whole := config.DefaultNotifier()
	whole.Notice = got
	var out bytes.Buffer
	require.NoError(t, config.Print(&out, whole))
	require.NotContains(t, out.String(), "sixteen")
	require.Contains(t, out.String(), "[redacted]")
	back, err := notifier(strings.ReplaceAll(out.String(), "[redacted]", "another key of many bytes"))
	require.NoError(t, err)
	whole.Notice = back
	var again bytes.Buffer
	require.NoError(t, config.Print(&again, whole))
	require.Equal(t, out.String(), again.String())
}

func TestNoticeFaultsAllAtOnce(t *testing.T) {
	_, err := notifier(`
notice:
  channels: [inbox, sms, pigeon]
  lease: 8s
  policy:
    zone: Mars/Base
    rules:
      - {kinds: [lost], channels: [inbox]}
      - {channels: [inbox, telex], colour: red}
    quiet: {sms: always, inbox: 21:00-08:00}
    caps: {sms: {day: -1}}
  limits:
    push: {rate: -1}
    sms: {concurrency: 0, deadline: 9s}
  gateway:
    sms: {url: "http://user:hunter2@sms.example", key: short}
    push: {url: "of a channel that is not there"}
`)
	require.Error(t, err)
	for _, want := range []string{
		"notice.channels: must be of",
		"notice.limits.push.rate: must be 0 or between 0.01 and 100000, got -1 (n.yaml)",
		"notice.limits.sms.concurrency: must be between 1 and 256, got 0 (n.yaml)",
		"notice.limits.sms.deadline: must be at most three quarters of lease (6s), got 9s (n.yaml)",
		"notice.policy.zone: must be a name of the IANA database",
		"notice.policy.rules[1].colour: is not a setting (n.yaml)",
		"notice.policy.quiet.inbox: must be of",
		"notice.policy.caps.sms.day: must be between",
		"notice.gateway.sms.url: ",
		"notice.gateway.sms.key: must have 16 bytes at least, has 5 (n.yaml)",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "hunter2")
	require.NotContains(t, err.Error(), "gateway.push")

	mail := `
notice:
  channels: [inbox, email]
  email: {host: mx.example, from: coupons@shop.example, connections: 8}
  limits: {email: {concurrency: %d}}
`
	_, err = notifier(fmt.Sprintf(mail, 8))
	require.NoError(t, err)
	_, err = notifier(fmt.Sprintf(mail, 9))
	require.ErrorContains(t, err, "notice.email.connections: must be at least limits.email.concurrency (9), got 8 (n.yaml)")
	_, err = notifier(strings.Replace(fmt.Sprintf(mail, 9), ", email]", "]", 1))
	require.NoError(t, err, "of a channel that is not there")

	_, err = notifier(`notice: {policy: {rules: [{kinds: [lost], channels: [inbox]}]}}`)
	require.ErrorContains(t, err, `notice.policy.rules[0].kinds[0]: must be of [expiring expired], got "lost" (n.yaml)`)
}
