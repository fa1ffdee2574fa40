package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/secret"
)

// The headers of a signed request, in either direction.
const (
	HeaderKey       = "Lapse-Key"       // id of the key
	HeaderTimestamp = "Lapse-Timestamp" // Unix seconds
	HeaderSignature = "Lapse-Signature" // v1= and the HMAC-SHA256 in hex of: the timestamp as sent, a full stop, the body
)

// Window is how far a signature's timestamp may be from now, before or after.
const Window = 5 * time.Minute

const version = "v1="

// ErrSignature says that a request is not signed as it must be.
var ErrSignature = errors.New("not signed by a known key")

// Sign puts a key's signature over body on a request's headers.
func Sign(keyID string, key secret.String, h http.Header, body []byte, now time.Time) {
	stamp := strconv.FormatInt(now.Unix(), 10)
	h.Set(HeaderKey, keyID)
	h.Set(HeaderTimestamp, stamp)
	h.Set(HeaderSignature, signature(key, stamp, body))
}

// Keys are those by which others may sign, by their ids.
type Keys map[string]secret.String

// Key names the key that a request says it is signed by, before anything is checked; empty if it does not say.
func (Keys) Key(h http.Header) string { return h.Get(HeaderKey) }

// Verify checks the signature of a request by one of the keys, of which there may be several so that they can be rotated, and gives
// its instant. Errors wrap ErrSignature and say which part is wrong; none of them shows what was sent. A request may be repeated
// within the window: what it asks for must be the same twice.
func (k Keys) Verify(h http.Header, body []byte, now time.Time) (signed time.Time, err error) {
	keyID, stamp, given := h.Values(HeaderKey), h.Values(HeaderTimestamp), h.Values(HeaderSignature)
	if len(keyID) != 1 || len(stamp) != 1 || len(given) != 1 {
		return time.Time{}, fmt.Errorf("%w: %s, %s and %s must be there, each once", ErrSignature, HeaderKey, HeaderTimestamp, HeaderSignature)
	}
	key, known := k[keyID[0]]
	if !known || key.Empty() {
		return time.Time{}, fmt.Errorf("%w: there is no such key", ErrSignature)
	}
	// Compared first: of a request that is not the gateway's nothing more is said.
	if !hmac.Equal([]byte(signature(key, stamp[0], body)), []byte(given[0])) {
		return time.Time{}, fmt.Errorf("%w: the signature is wrong", ErrSignature)
	}
	seconds, err := strconv.ParseInt(stamp[0], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: the timestamp must be Unix seconds", ErrSignature)
	}
	signed = time.Unix(seconds, 0)
	if off := now.Sub(signed); off.Abs() > Window {
		return time.Time{}, fmt.Errorf("%w: the timestamp is %s off, at most %s is let pass", ErrSignature, off.Round(time.Second), Window)
	}
	return signed, nil
}

func signature(key secret.String, stamp string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(stamp))
	mac.Write([]byte("."))
	mac.Write(body)
	return version + hex.EncodeToString(mac.Sum(nil))
}
