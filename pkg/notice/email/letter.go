package email

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/mail"
	"net/url"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/lapsehq/lapse/pkg/notice"
)

// letter composes the message as it goes over the wire, to an address that was parsed.
func (e *Email) letter(m *notice.Message, to string, now time.Time) ([]byte, error) {
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(e.from)
	msg.ToMailAddress(&mail.Address{Address: to})
	if e.replyTo != nil {
		msg.ReplyToMailAddress(e.replyTo)
	}
	msg.Subject(line(m.Text.Title))
	msg.SetMessageIDWithValue(m.ID + "@" + e.domain)
	msg.SetDateWithValue(now)
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.SetGenHeader("X-Auto-Response-Suppress", "All")
	if e.cfg.Unsubscribe != "" {
		where := e.unsubscribe(m)
		msg.SetGenHeaderPreformatted(gomail.HeaderListUnsubscribe, "<"+where+">")
		if strings.HasPrefix(where, "https:") {
			msg.SetListUnsubscribePost()
		}
	}
	msg.SetBodyString(gomail.TypeTextPlain, m.Text.Text)
	if m.HTML != "" {
		msg.AddAlternativeString(gomail.TypeTextHTML, m.HTML)
	}
	var wire bytes.Buffer
	if _, err := msg.WriteTo(&wire); err != nil {
		return nil, fmt.Errorf("composing: %w", err)
	}
	return wire.Bytes(), nil
}

// line makes one line of a text: what would break a header's line is a space.
func line(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text))
}

// unsubscribe fills the address of List-Unsubscribe in.
func (e *Email) unsubscribe(m *notice.Message) string {
	return strings.NewReplacer(
		"{notice_id}", url.QueryEscape(m.ID), "{user_id}", url.QueryEscape(m.UserID), "{sign}", e.unsubscribeSign(m),
	).Replace(e.cfg.Unsubscribe)
}

// unsubscribeSign is base64url, unpadded, of the HMAC-SHA256 of: the notice id, a line feed, the user id.
func (e *Email) unsubscribeSign(m *notice.Message) string {
	mac := hmac.New(sha256.New, []byte(e.cfg.UnsubscribeKey.Reveal()))
	mac.Write([]byte(m.ID + "\n" + m.UserID))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
