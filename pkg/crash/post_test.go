//go:build proof

package crash_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

const (
	providerKey    = "crash-key-1"
	providerSecret = "crash-fedcba9876543210fedcba9876543210"
)

// post is the far side of the channels.
type post struct {
	mail      *receive.Mail
	sms, push *receive.Gateway
	ca        string
}

func openPost(w *world) *post {
	p := &post{ca: filepath.Join(w.dir, "ca.pem")}
	authority, err := receive.NewAuthority(time.Now())
	require.NoError(w, err)
	require.NoError(w, authority.WriteFile(p.ca))
	p.mail, err = receive.StartMail(w.ctx, receive.MailConfig{Authority: authority})
	require.NoError(w, err)
	for _, g := range []**receive.Gateway{&p.sms, &p.push} {
		*g, err = receive.StartGateway(w.ctx, receive.GatewayConfig{Authority: authority, Keys: map[string]string{providerKey: providerSecret}})
		require.NoError(w, err)
	}
	return p
}

func (p *post) close(w *world) {
	if err := errors.Join(p.mail.Close(), p.sms.Close(), p.push.Close()); err != nil {
		w.Errorf("%v", err)
	}
}

// env tells the workers where that is, and to wait for nothing longer than they must.
func (p *post) env(role string) map[string]string {
	if role == crash.Publisher {
		return map[string]string{
			"LAPSE__REMINDERS__OFFSETS": "-30m",
			"LAPSE__API__PROVIDERS":     fmt.Sprintf(`{%q:%q}`, providerKey, providerSecret),
		}
	}
	if role != crash.Notifier {
		return nil
	}
	secret := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	vars := map[string]string{
		"LAPSE__NOTICE__CHANNELS": "inbox,popup,email,sms,push",
		"LAPSE__NOTICE__QUIET":    "200ms", "LAPSE__NOTICE__MAX_AGE": "1s", "LAPSE__NOTICE__LEASE": "2s",
		"LAPSE__NOTICE__POLL_MIN": "50ms", "LAPSE__NOTICE__POLL_MAX": "200ms",
		"LAPSE__NOTICE__POLICY__RULES":      `[{"kinds":["expired"],"channels":["inbox","sms","push","email"]},{"kinds":["expiring"],"channels":["popup"]}]`,
		"LAPSE__NOTICE__POLICY__QUIET":      `{"sms":"never","push":"never","email":"never"}`,
		"LAPSE__NOTICE__POLICY__CAPS":       `{"sms":{"day":0,"week":0},"push":{"day":0,"week":0},"email":{"day":0,"week":0}}`,
		"LAPSE__NOTICE__POLICY__INACTIVE":   "0s",
		"LAPSE__PROFILE__ADDRESSES__ACTIVE": "k1",
		"LAPSE__PROFILE__ADDRESSES__KEYS":   fmt.Sprintf(`{"k1":%q}`, secret),
		"LAPSE__NOTICE__EMAIL__HOST":        "127.0.0.1",
		"LAPSE__NOTICE__EMAIL__PORT":        strconv.Itoa(p.mail.Port()),
		"LAPSE__NOTICE__EMAIL__CA_FILE":     p.ca,
		"LAPSE__NOTICE__EMAIL__FROM":        "Shop <coupons@lapse.example>",
	}
	for name, g := range map[string]*receive.Gateway{"SMS": p.sms, "PUSH": p.push} {
		at := "LAPSE__NOTICE__GATEWAY__" + name + "__"
		vars[at+"URL"], vars[at+"CA_FILE"], vars[at+"KEY_ID"], vars[at+"KEY"] = g.URL(), p.ca, providerKey, providerSecret
	}
	for _, name := range []string{"INBOX", "POPUP", "EMAIL", "SMS", "PUSH"} {
		vars["LAPSE__NOTICE__LIMITS__"+name+"__DEADLINE"] = "1500ms"
	}
	return vars
}

// came is how often a notice came by each far channel.
func (p *post) came(window uint64) map[string]int {
	came := make(map[string]int)
	for channel, g := range map[string]*receive.Gateway{"sms": p.sms, "push": p.push} {
		_, took := g.Counts()
		came[channel] = took[fmt.Sprintf("%d-%s", window, channel)]
	}
	for id, n := range p.mail.Counts() {
		if strings.HasPrefix(id, fmt.Sprintf("%d-email@", window)) {
			came["email"] += n
		}
	}
	return came
}
