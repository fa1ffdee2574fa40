package receive

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log" //nolint:depguard // net/http's server takes no other; it is silenced
	"net/http"
	"strconv"
	"time"
)

const (
	signedFor   = 5 * time.Minute
	sendTimeout = 30 * time.Second
)

func silentLog() *log.Logger { return log.New(io.Discard, "", 0) }

// Signed reports whether a request carries the signature of one of the keys, made within five minutes of now. With no keys
// everything passes.
func Signed(keys map[string]string, h http.Header, body []byte, now time.Time) bool {
	if len(keys) == 0 {
		return true
	}
	key, known := keys[h.Get("Lapse-Key")]
	stamp := h.Get("Lapse-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if !known || err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > signedFor {
		return false
	}
	return hmac.Equal([]byte(signature(key, stamp, body)), []byte(h.Get("Lapse-Signature")))
}

// Sign puts a signature on a request with this body.
func Sign(keyID, key string, h http.Header, body []byte, now time.Time) {
	stamp := strconv.FormatInt(now.Unix(), 10)
	h.Set("Lapse-Key", keyID)
	h.Set("Lapse-Timestamp", stamp)
	h.Set("Lapse-Signature", signature(key, stamp, body))
}

func signature(key, stamp string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}

// Receipts sends what a provider has to tell to an installation's publisher.
type Receipts struct {
	URL   string // of the publisher's port, such as http://127.0.0.1:8080
	KeyID string
	Key   string
	Now   func() time.Time // default time.Now
}

// Post signs a body and posts it to a path of the publisher, such as /v1/receipts. An answer other than 2xx is ErrRefused.
func (r Receipts) Post(ctx context.Context, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encoding for %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+path, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("posting to %s: %w", path, err)
	}
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	req.Header.Set("Content-Type", "application/json")
	Sign(r.KeyID, r.Key, req.Header, text, now())
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return fmt.Errorf("posting to %s: %w", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, bodyLimit)); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", path, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("posting to %s: %w", path, refusal(resp.StatusCode))
	}
	return nil
}
