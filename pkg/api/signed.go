package api

import (
	"net/http"
	"time"
)

// providerName is how the access log and the limits call who signs with a key.
func providerName(key string) string { return "provider/" + key }

// serveSigned is serve for what providers send: they have no token, and are known by their signature over the body. So the
// body is read before it is known who sends it; whose key is not known is refused before.
func (a *API) serveSigned(ans *answer, r *http.Request, req *request) *Problem {
	refuse := func(detail string) *Problem {
		p := problem(http.StatusUnauthorized, CodeUnauthorized, detail)
		p.headers = http.Header{"Www-Authenticate": {"Lapse-Signature"}}
		return p
	}
	if a.deps.Signature == nil || len(a.cfg.Providers) == 0 {
		return refuse("no provider is configured here")
	}
	key := a.deps.Signature.Key(r.Header)
	if _, ok := a.cfg.Providers[key]; !ok {
		return refuse("the request must be signed by a known key")
	}
	body, p := a.body(ans, r, req.route)
	if p != nil {
		return p
	}
	now := time.Now()
	signed, err := a.deps.Signature.Verify(r.Header, body, now)
	if err != nil {
		return refuse(err.Error())
	}
	req.caller = caller{name: providerName(key), actor: providerName(key), signed: signed.UTC()}
	if p := a.limits.rate(req.caller.name, laneProviders, now); p != nil {
		return p
	}
	if p := checkURL(r.URL); p != nil {
		return p
	}
	in := a.metrics.waiting.WithLabelValues(string(laneProviders))
	in.Inc()
	defer in.Dec()
	return a.handle(ans, r, req, laneProviders, body)
}
