package issuance_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/issuance"
)

// issuer grants whatever it is asked for; the grants of users whose names say so fail.
type issuer struct {
	sizes  []int
	issued []string // keys, in order
	known  map[string]bool
	fail   error // for every call
}

func (f *issuer) Issue(_ context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	f.sizes = append(f.sizes, len(grants))
	if f.fail != nil {
		return nil, f.fail
	}
	for _, g := range grants {
		if strings.HasPrefix(g.UserID, "impossible") {
			return nil, fmt.Errorf("issue: %w: row of %s", coupon.ErrIntegrity, g.UserID)
		}
	}
	answers := make([]coupon.Granted, len(grants))
	for i, g := range grants {
		switch {
		case f.known[g.Key]:
			answers[i] = coupon.Granted{CouponID: 1, Repeated: true}
		case g.TemplateID == 404:
			answers[i] = coupon.Granted{Refused: coupon.CodeTemplateNotFound}
		default:
			answers[i] = coupon.Granted{CouponID: uint64(len(f.issued) + 1)}
			f.issued = append(f.issued, g.Key)
			f.known[g.Key] = true
		}
	}
	return answers, nil
}

type scene struct {
	*issuance.Handler
	issuer *issuer
	reg    *prometheus.Registry
	logs   *observer.ObservedLogs
}

func newScene(t *testing.T, batch int) *scene {
	t.Helper()
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	core, logs := observer.New(zapcore.DebugLevel)
	s := &scene{issuer: &issuer{known: make(map[string]bool)}, reg: prometheus.NewRegistry(), logs: logs}
	c := issuance.DefaultConfig()
	c.Batch = batch
	s.Handler, err = issuance.NewHandler(c, s.issuer, codec, "p.park", zap.New(core), s.reg)
	require.NoError(t, err)
	return s
}

func (s *scene) count(t *testing.T, result string) int {
	t.Helper()
	families, err := s.reg.Gather()
	require.NoError(t, err)
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == result {
			return int(m.GetCounter().GetValue())
		}
	}
	require.Fail(t, "no such result", result)
	return 0
}

func member(key, user string) string {
	return fmt.Sprintf(`{"grant_key":%q,"template_id":"7","user_id":%q}`, key, user)
}

func delivery(id, body string) broker.Delivery {
	return broker.Delivery{
		MessageID: id, Key: event.KeyGrant, Queue: "p.issuance", ContentType: "application/json", Body: []byte(body),
		ReceivedAt: time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC),
	}
}

func many(members ...string) string { return `{"grants":[` + strings.Join(members, ",") + `]}` }

func TestGrantsOfManyDeliveriesShareTransactions(t *testing.T) {
	t.Parallel()
	s := newScene(t, 4)
	out, err := s.Handle(t.Context(), []broker.Delivery{
		delivery("1", member("a", "u")),
		delivery("2", many(member("b", "u"), member("c", "u"), member("d", "u"), member("e", "u"), member("f", "u"))),
		delivery("3", member("g", "u")),
		delivery("4", member("a", "u")),
		delivery("5", `{"grant_key":"x","template_id":"404","user_id":"u"}`),
	})
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack(), broker.Ack(), broker.Ack(), broker.Ack(), broker.Ack()}, out)
	require.Equal(t, []int{4, 4, 1}, s.issuer.sizes)
	require.Equal(t, strings.Split("abcdefg", ""), s.issuer.issued)
	require.Equal(t, []int{7, 1, 1, 0}, []int{s.count(t, "granted"), s.count(t, "repeated"), s.count(t, "template_not_found"), s.count(t, "parked")})
}

func TestWhatCannotBeReadIsParkedWithTheReason(t *testing.T) {
	t.Parallel()
	s := newScene(t, 10)
	bodies := []string{`not json`, `{}`, `{"grants":[]}`, `{"grant_key":"k"}`, many(`{}`, `[]`), `{"specversion":"1.0","type":"coupon.grant.v2","id":"1","source":"s","data":{}}`}
	for _, body := range bodies {
		d := delivery("1", body)
		out, err := s.Handle(t.Context(), []broker.Delivery{d, delivery("2", member("good", "u"))})
		require.NoError(t, err)
		require.Equal(t, broker.Ack(), out[1], "the others go on")
		// The reason is the decoder's.
		in, err := event.DecodeIssuance(d.Body, d.ContentType, d.MessageID)
		if err == nil {
			var reasons []string
			for _, r := range in.Rejected {
				reasons = append(reasons, r.Err.Error())
			}
			err = errors.New(strings.Join(reasons, "; "))
		}
		require.Equal(t, broker.Park(err.Error()), out[0], body)
	}
	require.Equal(t, len(bodies)+1, s.count(t, "parked"))
	require.Equal(t, []string{"good"}, s.issuer.issued)
}

func TestBadMembersAreParkedByThemselves(t *testing.T) {
	t.Parallel()
	s := newScene(t, 10)
	wrong := `{"grant_key":"b","template_id":"seven","user_id":"u"}`
	d := delivery("m1", many(member("a", "u"), wrong, member("c", "impossible"), member("d", "u")))
	d.Headers = map[string]any{broker.HeaderTrace: "trace"}
	out, err := s.Handle(t.Context(), []broker.Delivery{d})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "d"}, s.issuer.issued)
	require.Equal(t, 2, s.count(t, "parked"))

	in, err := event.DecodeIssuance(d.Body, d.ContentType, d.MessageID)
	require.NoError(t, err)
	parked := d
	parked.Body = []byte(many(wrong, member("c", "impossible")))
	reason := in.Rejected[0].Err.Error() + "; issue: integrity: row of impossible"
	require.Equal(t, broker.Forward(parked.Parked("p.park", reason)), out[0])

	// Mended, what was parked is the same event again.
	mended := parked
	mended.Body = []byte(strings.NewReplacer(`"seven"`, `"7"`, "impossible", "u").Replace(string(parked.Body)))
	out, err = s.Handle(t.Context(), []broker.Delivery{mended})
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack()}, out)
	require.Equal(t, []string{"a", "d", "b", "c"}, s.issuer.issued)
}

func TestAGrantThatCannotBeStoredIsFoundByHalving(t *testing.T) {
	t.Parallel()
	s := newScene(t, 64)
	var batch []broker.Delivery
	for i := range 64 {
		user := "u"
		if i == 17 || i == 40 {
			user = fmt.Sprintf("impossible%d", i)
		}
		batch = append(batch, delivery(fmt.Sprint(i), member(fmt.Sprintf("k%d", i), user)))
	}
	out, err := s.Handle(t.Context(), batch)
	require.NoError(t, err)
	for i, o := range out {
		switch i {
		case 17, 40:
			require.Equal(t, broker.Park(fmt.Sprintf("issue: integrity: row of impossible%d", i)), o)
		default:
			require.Equal(t, broker.Ack(), o)
		}
	}
	require.Len(t, s.issuer.issued, 62)
	require.LessOrEqual(t, len(s.issuer.sizes), 2*2*7)
	require.Equal(t, 62, s.count(t, "granted"))
}

func TestWhileTheDatabaseIsAwayNothingIsDecided(t *testing.T) {
	t.Parallel()
	for _, fail := range []error{coupon.ErrUnavailable, coupon.ErrContention, context.Canceled, errors.New("unforeseen")} {
		s := newScene(t, 10)
		s.issuer.fail = fmt.Errorf("issue: %w", fail)
		out, err := s.Handle(t.Context(), []broker.Delivery{delivery("1", `not json`), delivery("2", member("a", "u"))})
		require.ErrorIs(t, err, fail)
		require.Nil(t, out)
		require.Zero(t, s.count(t, "parked"))
	}
}

func TestOneCallIsBounded(t *testing.T) {
	t.Parallel()
	s := newScene(t, 10)
	var batch []broker.Delivery
	for i := range 50 {
		var members []string
		for k := range 30 {
			members = append(members, member(fmt.Sprintf("%d.%d", i, k), "u"))
		}
		batch = append(batch, delivery(fmt.Sprint(i), many(members...)))
	}
	calls := 0
	for len(batch) > 0 {
		calls++
		before := len(s.issuer.sizes)
		out, err := s.Handle(t.Context(), batch)
		require.NoError(t, err)
		require.LessOrEqual(t, len(s.issuer.sizes)-before, 23, "20 transactions and the rest of the last delivery")
		var rest []broker.Delivery
		for i, o := range out {
			if reflect.DeepEqual(o, broker.Hold(0)) {
				rest = append(rest, batch[i])
			} else {
				require.Empty(t, rest, "in order")
			}
		}
		batch = rest
	}
	require.Len(t, s.issuer.issued, 1500)
	require.Equal(t, 8, calls)
}

func TestNothingOfUsersIsLogged(t *testing.T) {
	t.Parallel()
	s := newScene(t, 10)
	_, err := s.Handle(t.Context(), []broker.Delivery{
		delivery("1", `{"grant_key":"k","template_id":"1","user_id":["alice"]}`),
		delivery("2", member("secret-key", "impossible-alice")),
		delivery("3", many(member("k3", "u"), member("k4", "impossible-alice"))),
	})
	require.NoError(t, err)
	require.NotZero(t, s.logs.Len())
	for _, e := range s.logs.All() {
		text := fmt.Sprint(e.Message, e.ContextMap())
		require.NotContains(t, text, "alice")
		require.NotContains(t, text, "secret-key")
	}
}

func TestEveryResultIsThereFromTheStart(t *testing.T) {
	t.Parallel()
	s := newScene(t, 10)
	n, err := testutil.GatherAndCount(s.reg, "lapse_issued_total")
	require.NoError(t, err)
	require.Equal(t, 11, n)
}

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, issuance.DefaultConfig().Validate())
	require.NoError(t, issuance.DefaultConfig().Consumer().Validate())
	err := issuance.Config{Batch: 1001, Linger: -1, Prefetch: 1, Concurrency: 0}.Validate()
	for _, want := range []string{
		"batch: must be between 1 and 1000, got 1001", "linger: must be between 0s and 10s, got -1ns",
		"prefetch: must be between batch (1001) and 10000, got 1", "concurrency: must be between 1 and 64, got 0",
	} {
		require.ErrorContains(t, err, want)
	}
}
