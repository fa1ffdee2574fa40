package email_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/notice/email"
	"github.com/lapsehq/lapse/pkg/secret"
)

func valid() email.Config {
	cfg := email.DefaultConfig()
	cfg.Host, cfg.From = "smtp.shop.example", "Shop <coupons@shop.example>"
	return cfg
}

func TestConfig(t *testing.T) {
	require.NoError(t, valid().Validate())
	for field, spoil := range map[string]func(*email.Config){
		"host":            func(c *email.Config) { c.Host = "" },
		"port":            func(c *email.Config) { c.Port = 70000 },
		"tls":             func(c *email.Config) { c.TLS = email.TLSNone },
		"username":        func(c *email.Config) { c.Password = secret.New("p") },
		"from":            func(c *email.Config) { c.From = "Shop" },
		"reply_to":        func(c *email.Config) { c.ReplyTo = "a@b\r\nBcc: c@d" },
		"return_path":     func(c *email.Config) { c.ReturnPath = "a b@shop.example" },
		"domain":          func(c *email.Config) { c.Domain = "shop_example" },
		"unsubscribe":     func(c *email.Config) { c.Unsubscribe = "http://shop.example/" },
		"unsubscribe_key": func(c *email.Config) { c.Unsubscribe = "https://shop.example/?s={sign}" },
		"connections":     func(c *email.Config) { c.Connections = 0 },
		"idle":            func(c *email.Config) { c.Idle = 0 },
		"per_connection":  func(c *email.Config) { c.PerConnection = 0 },
		"retry_after_max": func(c *email.Config) { c.RetryAfterMax = 0 },
	} {
		cfg := valid()
		spoil(&cfg)
		err := cfg.Validate()
		require.Error(t, err, field)
		require.True(t, strings.HasPrefix(err.Error(), field+": "), err.Error())
		require.NotContains(t, err.Error(), "\n", "one fault, one line")
		_, err = email.New(cfg, nil)
		require.Error(t, err)
	}
	require.GreaterOrEqual(t, strings.Count(email.Config{}.Validate().Error(), "\n"), 6, "all at once")

	cfg := valid()
	cfg.TLS, cfg.Host = email.TLSNone, "127.0.0.1"
	require.NoError(t, cfg.Validate(), "of loopback")
	cfg = valid()
	cfg.Unsubscribe = "mailto:stop@shop.example?subject={notice_id}"
	require.NoError(t, cfg.Validate())
	cfg.Password, cfg.Username = secret.New("hunter2hunter2"), ""
	require.NotContains(t, cfg.Validate().Error(), "hunter2")
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"a@shop.example":              "a@shop.example",
		"first.last+tag@shop.example": "first.last+tag@shop.example",
		"a@localhost":                 "a@localhost",
		"o'neill@shop.example":        "o'neill@shop.example",
		"info@bücher.example":         "info@xn--bcher-kva.example",
		"info@BÜCHER.example":         "info@xn--bcher-kva.example",
		"info@例え.テスト":                 "info@xn--r8jz45g.xn--zckzah",
		"info@中国。cn":                  "info@xn--fiqs8s.cn",
		"info@παράδειγμα.δοκιμή":      "info@xn--hxajbheg2az3al.xn--jxalpdlp",
		"info@bu\u0308cher.example":   "info@xn--bcher-kva.example", // decomposed
		"info@президент.рф":           "info@xn--d1abbgf6aiiy.xn--p1ai",
	} {
		got, utf8, err := email.Parse(address)
		require.NoError(t, err, address)
		require.Equal(t, want, got)
		require.False(t, utf8)
	}
	got, utf8, err := email.Parse("用户@例子.测试")
	require.NoError(t, err)
	require.True(t, utf8)
	require.Equal(t, "用户@xn--fsqu00a.xn--0zwm56d", got)

	for _, address := range []string{
		"", "a", "@", "a@", "@b", "a b@shop.example", "a@shop.example\r\nRCPT TO:<b@shop.example>", "a@shop.example\r\nBcc: b@c", "<a@shop.example>",
		"A <a@shop.example>", "a@shop.example,b@shop.example", "a@[127.0.0.1]", `"a b"@shop.example`, "a@b@c", "a..b@shop.example",
		".a@shop.example", "a@shop..example", "a@-shop.example", "a@shop.example.", "a@shop_x.example", "a\x00@shop.example",
		"a\u0085@shop.example", "a\xff@shop.example", strings.Repeat("a", 65) + "@shop.example", "a@" + strings.Repeat("b", 64) + ".example",
		"a@" + strings.Repeat("abcdefghi.", 26) + "example", "a@例え\r\n.example", "a@例_え.example",
	} {
		_, _, err := email.Parse(address)
		require.Error(t, err, address)
		require.EqualError(t, err, "no address that mail can be sent to")
	}
}

// FuzzAddresses: what is let through can neither end a command nor begin another address.
func FuzzAddresses(f *testing.F) {
	for _, seed := range []string{"a@shop.example", "用户@例子.测试", "a@b\r\nDATA", "<a@b>", "a@[::1]", "a@\u3002."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		got, utf8, err := email.Parse(address)
		if err != nil {
			return
		}
		require.NotContains(t, got, "\n")
		require.Equal(t, 1, strings.Count(got, "@"))
		for _, r := range got {
			require.True(t, r > ' ' && r != 0x7f && !strings.ContainsRune("<>,;", r))
			require.True(t, r < 0x7f || utf8)
		}
		again, _, err := email.Parse(got)
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
