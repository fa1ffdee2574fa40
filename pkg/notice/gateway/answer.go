package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/notice"
)

// refLimit bounds a provider's id.
const refLimit = 100

// answered judges an answer. Of a gateway that does not say clearly whether it took an SMS, it is Unknown.
func (g *Gateway) answered(resp *http.Response, text []byte, err error, m *notice.Message) notice.Result {
	status := resp.StatusCode
	reason := "http_" + strconv.Itoa(status)
	doubt := notice.Retry
	if g.AtMostOnce() {
		doubt = notice.Unknown
	}
	until, asked := g.retryAfter(resp.Header)
	switch {
	case status >= 200 && status <= 299:
		ref, ok := reference(text, m)
		if err != nil {
			return notice.Result{Outcome: doubt, Reason: "cut"}
		}
		if !ok {
			return notice.Result{Outcome: doubt, Reason: "garbage"}
		}
		return notice.Result{Outcome: notice.Sent, Ref: ref}

	// It says that it is too busy to take it.
	case status == http.StatusTooManyRequests, status == http.StatusTooEarly,
		asked && (status == http.StatusServiceUnavailable || status == http.StatusRequestTimeout):
		return notice.Result{Outcome: notice.Throttled, Until: until, Reason: reason}

	// Something broke on its way; where is not known.
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusConflict:
		return notice.Result{Outcome: doubt, Reason: reason}

	// The fault is the channel's, not the message's: configuration, credit, a gateway that moved.
	case status >= 300 && status <= 399:
		return notice.Result{Outcome: notice.Retry, Reason: "redirect"}
	case status == http.StatusUnauthorized, status == http.StatusPaymentRequired, status == http.StatusForbidden,
		status == http.StatusMethodNotAllowed, status == http.StatusNotAcceptable, status == http.StatusProxyAuthRequired,
		status == http.StatusLengthRequired, status == http.StatusUnsupportedMediaType, status == http.StatusMisdirectedRequest,
		status == http.StatusUpgradeRequired:
		return notice.Result{Outcome: notice.Retry, Reason: reason}

	case !g.AtMostOnce() && (status == http.StatusNotFound || status == http.StatusGone):
		return notice.Result{Outcome: notice.Permanent, Reason: "address_gone"}
	case status >= 400:
		return notice.Result{Outcome: notice.Permanent, Reason: reason}
	}
	return notice.Result{Outcome: doubt, Reason: reason} // below 200
}

// reference reads the provider's id from an answer that says yes: nothing, or a JSON object. An id that could be the
// recipient's address, or is no short word, is left out.
func reference(text []byte, m *notice.Message) (ref string, ok bool) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return "", true
	}
	var answer struct {
		ID json.RawMessage `json:"id"`
	}
	if len(text) > answerLimit || text[0] != '{' || json.Unmarshal(text, &answer) != nil {
		return "", false
	}
	var number json.Number
	switch {
	case json.Unmarshal(answer.ID, &ref) == nil:
	case json.Unmarshal(answer.ID, &number) == nil:
		ref = number.String()
	}
	odd := strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r > '~' })
	if odd || len(ref) > refLimit || mentions(ref, m.Recipient) || mentions(ref, m.UserID) {
		return "", true
	}
	return ref, true
}

func mentions(ref, private string) bool { return private != "" && strings.Contains(ref, private) }

// retryAfter reads the header of that name: seconds or an HTTP date, within bounds; asked says whether it could be read.
func (g *Gateway) retryAfter(h http.Header) (until time.Time, asked bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return time.Time{}, false
	}
	now := g.now()
	var wait time.Duration
	if seconds, err := strconv.ParseUint(value, 10, 63); err == nil {
		wait = g.cfg.RetryAfterMax
		if seconds < uint64(wait/time.Second) {
			wait = time.Duration(seconds) * time.Second
		}
	} else if at, err := http.ParseTime(value); err == nil {
		wait = at.Sub(now)
	} else {
		return time.Time{}, false
	}
	return now.Add(min(max(wait, time.Second), g.cfg.RetryAfterMax)), true
}
