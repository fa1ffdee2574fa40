package receive

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"slices"
	"strings"
	"time"
)

// Letter is a message that the mail server has taken.
type Letter struct {
	From      string // of the envelope
	To        []string
	MessageID string // without the angles
	Subject   string // decoded
	Header    mail.Header
	Text      string // the parts, decoded
	HTML      string
	TLS       bool
	UTF8      bool   // sent with SMTPUTF8
	User      string // who had logged in
	At        time.Time
}

// parse reads a letter's content.
func (l *Letter) parse(r io.Reader) error {
	m, err := mail.ReadMessage(r)
	if err != nil {
		return fmt.Errorf("reading the header: %w", err)
	}
	l.Header = m.Header
	l.MessageID = strings.Trim(m.Header.Get("Message-Id"), "<>")
	if l.Subject, err = new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil {
		return fmt.Errorf("decoding the subject: %w", err)
	}
	return l.part(m.Header.Get("Content-Type"), m.Header.Get("Content-Transfer-Encoding"), m.Body)
}

func (l *Letter) part(contentType, encoding string, body io.Reader) error {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("reading a part's type: %w", err)
	}
	if strings.HasPrefix(kind, "multipart/") {
		for parts := multipart.NewReader(body, params["boundary"]); ; {
			p, err := parts.NextRawPart()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("reading the parts: %w", err)
			}
			if err := l.part(p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p); err != nil {
				return err
			}
		}
	}
	switch strings.ToLower(encoding) {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("decoding a part: %w", err)
	}
	whole := strings.ReplaceAll(string(text), "\r\n", "\n")
	switch kind {
	case "text/plain":
		l.Text += whole
	case "text/html":
		l.HTML += whole
	default:
		return fmt.Errorf("a part of an unexpected type %q", kind)
	}
	return nil
}

func (m *Mail) take(l *Letter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total++
	m.counts[l.MessageID]++
	if len(m.letters) < m.cfg.Keep {
		m.letters = append(m.letters, *l)
	}
	m.bell.ring()
}

func (m *Mail) refuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused++
}

// Letters gives those taken, in their order, as far as they are kept.
func (m *Mail) Letters() []Letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.letters)
}

// Counts tells how often each Message-ID was taken.
func (m *Mail) Counts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}

// Total is how many letters were taken, repeats included; refused how many a code was said to.
func (m *Mail) Total() (taken, refused int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total, m.refused
}

// Sessions is how many times EHLO was said: twice for each connection with STARTTLS.
func (m *Mail) Sessions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions
}

// Wait lasts until n letters were taken in all, or ctx ends.
func (m *Mail) Wait(ctx context.Context, n int) error {
	for {
		m.mu.Lock()
		total, next := m.total, m.bell.next
		m.mu.Unlock()
		if total >= n {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d letters came: %w", total, n, ctx.Err())
		}
	}
}
