//go:build proof

package crash_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	patience = 45 * time.Second // until something that must come about has
	poll     = 20 * time.Millisecond
	attempt  = 8 * time.Second // of one call of the API
	issuer   = "crash"
	bearer   = "crash-0123456789abcdef0123456789abcdef"
)

// world is a stage as one of its tests sees it, with whose failures it ends: the stage's own, or that of a step.
type world struct {
	*testing.T
	*props
}

// props are what all steps of a stage that is played share: an installation, whoever hears what it says, and what was asked of it.
type props struct {
	ctx   context.Context // of the stage
	stage *stage
	dir   string
	bin   string
	i     *demo.Installation
	ears  *ears
	bells *bells
	post  *post

	template uint64
	ended    map[string]chan error // by worker: deaths that nobody asked for

	mu      sync.Mutex
	deaths  []death
	coupons []*promised
	serial  int
}

// death is a stop of a process, by this process's clock.
type death struct {
	worker, at    string
	armed, before time.Time // it died between the two
}

// step is a test within the stage's, which may be run side by side with others.
func (w *world) step(name string, f func(w *world)) {
	w.Run(name, func(t *testing.T) { f(&world{T: t, props: w.props}) })
}

// run plays a stage.
func (s *stage) run(t *testing.T, stack rig.Stack, bin string) {
	w := &world{T: t, props: &props{
		ctx: t.Context(), stage: s, dir: t.TempDir(), bin: bin, ears: newEars(), bells: newBells(), ended: make(map[string]chan error),
	}}
	defer w.close()
	w.open(stack)
	supervised, stop := context.WithCancel(w.ctx)
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(supervised) })
	defer watching.Wait()
	defer stop()
	if s.begin != nil {
		s.begin(w)
	}
	var lanes sync.WaitGroup
	for _, l := range s.lanes {
		lanes.Go(func() {
			for _, sc := range l.scenes {
				for _, side := range sides {
					w.play(l, sc, side)
				}
			}
			if l.last != nil {
				l.last(w)
			}
		})
	}
	lanes.Wait()
	w.judge()
}

// open makes the installation, and listens before anybody says anything.
func (w *world) open(stack rig.Stack) {
	if w.stage.post {
		w.post = openPost(w)
	}
	var err error
	w.i, err = demo.Install(w.ctx, demo.InstallationConfig{
		Stack: stack, Bin: w.bin, Hear: w.ears.hear, Workers: []string{}, Ladder: demo.ShortLadder,
	})
	require.NoError(w, err)
	w.ears.clock(func() time.Time { _, high := w.i.Audit().Bounds(); return high })
	w.template, err = w.i.Template(w.ctx, "crash")
	require.NoError(w, err)
	if len(w.stage.rings) > 0 {
		w.bells.listen(w)
	}
	names := append([]string{demo.Expirer}, w.stage.runs...)
	for _, l := range w.stage.lanes {
		names = append(names, l.worker)
	}
	for _, worker := range names {
		if worker != crash.Lapsectl {
			w.put(worker, nil)
		}
	}
	for _, worker := range names[1:] {
		if worker != crash.Lapsectl && !w.i.Fleet().Running(worker) {
			w.launch(worker)
		}
	}
}

// put tells how a worker is started from now on.
func (w *world) put(worker string, more map[string]string) {
	role, _, _ := strings.Cut(worker, "-")
	vars := map[string]string{
		crash.Variable:          w.file(worker),
		"LAPSE__LOG__LEVEL":     "warn",
		"LAPSE__LADDER__LEVELS": demo.ShortLevels(),
		"LAPSE__BROKER__NAME":   worker,
		// What the management API could tell at a start is no matter here, and takes as long as all the rest.
		"LAPSE__BROKER__MANAGEMENT_URL": "",
		// What a busy broker confirms late is not sent once more.
		"LAPSE__BROKER__PUBLISH_TIMEOUT": "1m",
	}
	if role == demo.Publisher {
		sum := sha256.Sum256([]byte(bearer))
		maps.Copy(vars, map[string]string{
			"LAPSE__API__TOKENS":                    fmt.Sprintf(`[{name: crash, hash: %s, scopes: [issue, order, read, ops], issuer: %s}]`, hex.EncodeToString(sum[:]), issuer),
			"LAPSE__API__REQUEST_TIMEOUT":           "1s", // the lease of a key follows from it
			"LAPSE__API__LIMITS__ISSUE__PER_SECOND": "0",
			"LAPSE__API__LIMITS__ORDER__PER_SECOND": "0",
			"LAPSE__API__LIMITS__READ__PER_SECOND":  "0",
			"LAPSE__API__LIMITS__OPS__PER_SECOND":   "0",
			"LAPSE__LEDGER__QUOTA_INTERVAL":         "200ms",
			"LAPSE__OUTBOX__IDLE_POLL":              "200ms", // for what an expirer tells
		})
	}
	if role != crash.Notifier {
		vars["LAPSE__OUTBOX__LEASE"] = "2s" // whoever is stopped has had some of the partitions
	}
	if role == demo.Expirer {
		maps.Copy(vars, map[string]string{
			"LAPSE__EXPIRY__SWEEP__GRACE": "3s", "LAPSE__EXPIRY__SWEEP__OUTAGE_GRACE": "3s", "LAPSE__EXPIRY__SWEEP__INTERVAL": "500ms",
		})
	}
	if w.post != nil {
		maps.Copy(vars, w.post.env(role))
	}
	if w.stage.env != nil {
		maps.Copy(vars, w.stage.env(w, role))
	}
	maps.Copy(vars, more)
	w.i.Put(w.bin, worker, role, vars)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended[worker] == nil {
		w.ended[worker] = make(chan error, 8)
	}
}

// file arms a worker.
func (w *world) file(worker string) string { return filepath.Join(w.dir, worker+".arm") }

func (w *world) arm(worker, at string) {
	fresh := w.file(worker) + ".new"
	require.NoError(w, os.WriteFile(fresh, []byte(at), 0o600))
	require.NoError(w, os.Rename(fresh, w.file(worker))) // whole at once
}

func (w *world) disarm(worker string) {
	for _, file := range []string{w.file(worker), w.file(worker) + crash.HitSuffix} {
		if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
			require.NoError(w, err)
		}
	}
}

// watch hands deaths to whoever waits for them.
func (w *world) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-w.i.Fleet().Died():
			worker, _, _ := strings.Cut(err.Error(), " ")
			w.mu.Lock()
			ended := w.ended[worker]
			w.mu.Unlock()
			select {
			case ended <- err:
			default:
				w.Errorf("nobody waits for so many deaths: %v", err)
			}
		}
	}
}

func (w *world) launch(worker string) { require.NoError(w, w.i.Fleet().Launch(w.ctx, worker)) }

// ready waits until a worker says that it is.
func (w *world) ready(worker string) {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	require.NoError(w, w.i.Fleet().WaitReady(ctx, worker))
}

// kill ends a worker, wherever it is.
func (w *world) kill(worker string) {
	armed := time.Now()
	require.NoError(w, w.i.Fleet().Kill(worker))
	w.died(death{worker: worker, at: "anywhere", armed: armed, before: time.Now()})
}

func (w *world) died(d death) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaths = append(w.deaths, d)
}

// api is a client of a publisher where it serves now, who asks once.
func (w *world) api(publisher string) *client.Client {
	w.ready(publisher)
	c, err := client.New(client.Config{
		URL: w.url(publisher), Token: bearer, Actor: "crash", Attempts: 1, Timeout: attempt, Transport: &http.Transport{DisableKeepAlives: true},
	})
	require.NoError(w, err)
	return c
}

func (w *world) url(publisher string) string {
	ports, err := w.i.Fleet().Ports(publisher)
	require.NoError(w, err)
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(ports["api"]))
}

// again asks until there is an answer that is one, as a client does who has lost the first.
func (w *world) again(publisher string, call func(ctx context.Context, api *client.Client) error) {
	w.until("an answer", func() (bool, error) {
		err := call(w.ctx, w.api(publisher))
		if client.Uncertain(err) || client.IsCode(err, client.CodeInProgress, client.CodeBusy, client.CodeUnavailable) {
			return false, nil
		}
		return true, err
	})
}

// until waits for something.
func (w *world) until(what string, ok func() (bool, error)) {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	err := rig.Until(ctx, poll, ok)
	require.NoError(w, err, "waiting for %s", what)
}

// counted waits until a query gives n.
func (w *world) counted(what string, n int, query string, args ...any) {
	have := 0
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	err := rig.Until(ctx, poll, func() (bool, error) {
		have = w.count(query, args...)
		return have == n, nil
	})
	require.NoError(w, err, "%s: %d, not %d", what, have, n)
}

func (w *world) count(query string, args ...any) (n int) {
	require.NoError(w, w.i.DB().QueryRowContext(w.ctx, query, args...).Scan(&n), query)
	return n
}

func (w *world) exec(query string, args ...any) {
	_, err := w.i.DB().ExecContext(w.ctx, query, args...)
	require.NoError(w, err, query)
}

// number makes names that nobody else has.
func (w *world) number() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serial++
	return w.serial
}

// soon is a whole second, so far ahead or a little more.
func (w *world) soon(d time.Duration) time.Time {
	return w.i.Now().Add(d).Truncate(time.Second).Add(time.Second).UTC()
}

// passed waits for an instant of the database's clock.
func (w *world) passed(at time.Time) {
	require.NoError(w, lifecycle.Sleep(w.ctx, at.Sub(w.i.Now())+poll))
}

func (w *world) close() {
	logs := ""
	if w.Failed() {
		logs = "crash-" + w.stage.name
	}
	w.bells.close(w)
	if w.i != nil {
		kept, err := w.i.Remove(w.ctx, logs)
		if err != nil {
			w.Errorf("%v", err)
		}
		if kept != "" {
			w.Logf("the workers' logs are in %s", kept)
		}
	}
	if w.post != nil {
		w.post.close(w)
	}
}

// promised is a coupon that was asked for, and all that was asked of it.
type promised struct {
	model.Promise
	id string
}
