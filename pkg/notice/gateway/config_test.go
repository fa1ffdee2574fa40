package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/secret"
)

const key = "0123456789abcdef-test"

func valid() gateway.Config {
	cfg := gateway.DefaultConfig()
	cfg.URL, cfg.KeyID, cfg.Key = "https://sms.example/send", "2026-01", secret.New(key)
	return cfg
}

func TestConfig(t *testing.T) {
	require.NoError(t, valid().Validate())
	for field, spoil := range map[string]func(*gateway.Config){
		"url":               func(c *gateway.Config) { c.URL = "sms.example/send" },
		"key_id":            func(c *gateway.Config) { c.KeyID = "a b" },
		"key":               func(c *gateway.Config) { c.Key = secret.New("short-hunter2") },
		"token":             func(c *gateway.Config) { c.Token = secret.New("hunter2\r\nX: y") },
		"templates[0].key":  func(c *gateway.Config) { c.Templates = []gateway.Template{{Kind: "expiring"}} },
		"templates[0].kind": func(c *gateway.Config) { c.Templates = []gateway.Template{{Kind: "soon", Key: "k"}} },
		"retry_after_max":   func(c *gateway.Config) { c.RetryAfterMax = 0 },
		"idle":              func(c *gateway.Config) { c.Idle = 0 },
		"connections":       func(c *gateway.Config) { c.Connections = 0 },
	} {
		cfg := valid()
		spoil(&cfg)
		err := cfg.Validate()
		require.Error(t, err, field)
		require.True(t, strings.HasPrefix(err.Error(), field+": "), err.Error())
		require.NotContains(t, err.Error(), "\n", "one fault, one line")
		require.NotContains(t, err.Error(), "hunter2")
		_, err = gateway.New(coupon.ChannelSMS, cfg, time.Now)
		require.Error(t, err)
	}
	require.GreaterOrEqual(t, strings.Count(gateway.Config{}.Validate().Error(), "\n"), 5, "all at once")

	for url, right := range map[string]bool{
		"": false, "https://": false, "ftp://sms.example": false, "https://u:p@sms.example": false, "http://sms.example/": false,
		"http://127.0.0.1:80/": true, "http://localhost/": true, "http://[::1]:1/": true, "https://sms.example?x=y": true,
	} {
		cfg := valid()
		cfg.URL = url
		require.Equal(t, right, cfg.Validate() == nil, url)
	}
	cfg := valid()
	cfg.URL, cfg.Plain = "http://sms.example/", true
	require.NoError(t, cfg.Validate())
	_, err := gateway.New(coupon.ChannelEmail, valid(), time.Now)
	require.ErrorContains(t, err, "email")
	cfg.CAFile = "/nowhere/ca.pem"
	_, err = gateway.New(coupon.ChannelSMS, cfg, time.Now)
	require.ErrorContains(t, err, "ca_file: ")
}
