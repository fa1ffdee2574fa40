package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/secret"
)

// adapter stands between Lapse and a provider with an interface of its own.
type adapter struct {
	keys gateway.Keys
	send func(phone, template string, params map[string]string) (id string, busy bool, err error) // the provider's

	mu   sync.Mutex
	done map[string]string // provider's ids by notice id; a real one keeps them in a table for a day
}

func (a *adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	if _, err := a.keys.Verify(r.Header, body, time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var n struct {
		ID       string            `json:"notice_id"`
		Phone    string            `json:"recipient"`
		Template string            `json:"template_key"`
		Params   map[string]string `json:"params"`
		NotAfter time.Time         `json:"not_after"`
	}
	if err := json.Unmarshal(body, &n); err != nil || n.Phone == "" || n.Template == "" {
		w.WriteHeader(http.StatusUnprocessableEntity) // it never will
		return
	}
	a.mu.Lock() // one at a time, to be short: a real one locks the notice's row
	defer a.mu.Unlock()
	id, repeated := a.done[n.ID]
	if !repeated {
		if !n.NotAfter.IsZero() && time.Now().After(n.NotAfter) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		var busy bool
		id, busy, err = a.send(n.Phone, n.Template, n.Params)
		switch {
		case busy: // it has not taken it
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case err != nil: // it may have
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		a.done[n.ID] = id
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"id": id})
}

// An adapter between Lapse and a provider of SMS.
func ExampleKeys() {
	key := secret.New("example-key-0123456789")
	sent := 0
	a := &adapter{
		keys: gateway.Keys{"2026-11": key},
		send: func(_, template string, params map[string]string) (string, bool, error) {
			sent++
			fmt.Println("sent", template, "with", params["count"])
			return fmt.Sprintf("provider-%d", sent), false, nil
		},
		done: make(map[string]string),
	}
	body := []byte(`{"notice_id":"4711-sms","recipient":"+8613700000000","template_key":"SMS_471001","params":{"count":"3"}}`)
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/notices", bytes.NewReader(body))
		gateway.Sign("2026-11", key, r.Header, body, time.Now())
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	r := httptest.NewRequest(http.MethodPost, "/notices", bytes.NewReader(body))
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	fmt.Println(w.Code)
	// Output:
	// sent SMS_471001 with 3
	// 200 {"id":"provider-1"}
	// 200 {"id":"provider-1"}
	// 401
}
