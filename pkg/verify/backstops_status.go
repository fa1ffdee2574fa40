package verify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	slowedBy = 250 * time.Millisecond
	seenFor  = 45 * time.Second // a status looks back fifteen seconds, and is told each five
)

// status puts proxies before both servers, slows one after the other, and asks what is slow. The provider's part is a test of
// cmd/lapsectl: the channels that exist cannot be slowed from outside.
func (w *backstops) status(ctx context.Context, t *tally) (err error) {
	u, err := url.Parse(w.cfg.Stack.AMQPURL.Reveal())
	if err != nil {
		return errors.New("TEST_AMQP_URL is malformed")
	}
	c, err := mysql.ParseDSN(w.cfg.Stack.DSN.Reveal())
	if err != nil {
		return errors.New("TEST_MYSQL_DSN is malformed")
	}
	broker, err := rig.NewProxy(u.Host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	database, err := rig.NewProxy(c.Addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.Close()) }()
	u.Host = broker.Addr()
	o := opening{env: func(string) map[string]string {
		return map[string]string{"LAPSE__BROKER__URL": u.String(), "LAPSE__DATABASE__ADDRESS": database.Addr()}
	}}
	return w.open(ctx, t, o, func(ctx context.Context, s *shop) error {
		if err := s.Add(ctx, w.cfg.Bin, demo.Notifier, demo.Notifier, o.env(demo.Notifier)); err != nil {
			return err
		}
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		for _, part := range []struct {
			name  string
			proxy *rig.Proxy
		}{{"", nil}, {"broker", broker}, {"", nil}, {"database", database}, {"", nil}} {
			if part.proxy != nil {
				part.proxy.Delay(slowedBy)
			}
			x, code, err := w.statusUntil(ctx, s, template, part.name)
			if part.proxy != nil {
				part.proxy.Delay(0)
			}
			if err != nil {
				return err
			}
			named := ""
			if x.Bottleneck != nil {
				named = x.Bottleneck.Party
			}
			name := part.name
			if name == "" {
				name = "nothing"
			}
			w.cfg.View.Step(fmt.Sprintf("%s slowed: status names %q", name, named))
			want(t, name+"_slowed_named", boolean(named == part.name), Equal, 1)
			if part.name != "" {
				want(t, name+"_slowed_exit", code, Equal, 1)
			}
		}
		broker.Refuse(true)
		broker.Cut()
		gone, err := w.lapsectl(ctx, s, []string{"LAPSE__BROKER__URL=" + u.String()}, "status", "--json")
		broker.Refuse(false)
		if err != nil {
			return err
		}
		want(t, "without_broker_exit", gone.code, Equal, 1)
		if err := s.Fleet().Stop(ctx); err != nil {
			return err
		}
		none, err := w.lapsectl(ctx, s, nil, "status", "--json")
		if err != nil {
			return err
		}
		var x statusSaid
		if err := none.json(&x); err != nil {
			return err
		}
		want(t, "without_workers_exit", none.code, Equal, 1)
		want(t, "without_workers_said", boolean(len(x.Attention) > 0 && x.Attention[0] == "no worker runs"), Equal, 1)
		return nil
	})
}

// statusSaid is what the check reads of lapsectl status.
type statusSaid struct {
	Attention  []string `json:"attention"`
	Bottleneck *struct {
		Party string `json:"party"`
	} `json:"bottleneck"`
}

// statusUntil grants some coupons each second, so that there is something to be slow with, and asks until the answer is the one
// that is expected, or it has had time to be.
func (w *backstops) statusUntil(ctx context.Context, s *shop, template, party string) (x statusSaid, code int, err error) {
	deadline := time.Now().Add(seenFor)
	for n := 0; ; n++ {
		at := s.soon(3 * time.Second)
		if _, err := s.grant(ctx, template, 5, keyed(fmt.Sprintf("status-%s-%d-%d", party, deadline.UnixNano(), n), at)); err != nil {
			return x, 0, err
		}
		if err := lifecycle.Sleep(ctx, time.Second); err != nil {
			return x, 0, err
		}
		answer, err := w.lapsectl(ctx, s, nil, "status", "--json")
		if err != nil {
			return x, 0, err
		}
		x = statusSaid{}
		if err := answer.json(&x); err != nil {
			return x, 0, err
		}
		named := ""
		if x.Bottleneck != nil {
			named = x.Bottleneck.Party
		}
		if named == party && (party != "" || n > 3) || time.Now().After(deadline) {
			return x, answer.code, nil
		}
	}
}
