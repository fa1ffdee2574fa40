package watch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// alertmanager starts a real one with the configuration that is shipped.
func alertmanager(t *testing.T) string {
	t.Helper()
	program := "prometheus-alertmanager"
	if _, err := exec.LookPath(program); err != nil {
		program = "alertmanager"
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	log, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	cmd := exec.Command(program, "--config.file="+configs+"/prometheus/alertmanager.yml", "--storage.path="+t.TempDir(),
		"--web.listen-address="+address, "--cluster.listen-address=")
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		require.NoError(t, log.Close())
	})
	require.Eventually(t, func() bool {
		status, _ := ask(t.Context(), http.MethodGet, "http://"+address+"/-/ready", nil)
		return status == http.StatusOK
	}, 30*time.Second, 100*time.Millisecond)
	return "http://" + address
}

func ask(ctx context.Context, method, url string, body []byte) (int, []byte) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	var b bytes.Buffer
	_, _ = b.ReadFrom(res.Body)
	return res.StatusCode, b.Bytes()
}

type posted struct {
	Labels map[string]string `json:"labels"`
}

// With a server away a person hears of that, and not of what follows from it.
func TestAServerThatIsAwayKeepsQuietWhatFollows(t *testing.T) {
	t.Parallel()
	url := alertmanager(t)
	all := alerts(t)
	alert := func(name string, more ...string) posted {
		labels := map[string]string{"alertname": name}
		for k, v := range all[name].Labels {
			labels[k] = v
		}
		for i := 0; i+1 < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return posted{labels}
	}
	for _, c := range []struct {
		name         string
		raised       []posted
		told, silent []string
	}{
		{
			name:   "the broker",
			raised: []posted{alert("LapseBrokerDown"), alert("LapseOutboxOld", "lane", "trigger"), alert("LapseSweepRecovers"), alert("LapseHeartbeatMissing", "precision", "exact"), alert("LapseParked")},
			told:   []string{"LapseBrokerDown", "LapseParked"},
			silent: []string{"LapseHeartbeatMissing", "LapseOutboxOld", "LapseSweepRecovers"},
		},
		{
			name:   "the database",
			raised: []posted{alert("LapseDatabaseDown"), alert("LapseAPIFails"), alert("LapseNoConsumers", "queue", "lapse.orders"), alert("LapseExpiredEarly"), alert("LapsePublishFails")},
			told:   []string{"LapseDatabaseDown", "LapseExpiredEarly", "LapsePublishFails"},
			silent: []string{"LapseAPIFails", "LapseNoConsumers"},
		},
		{
			name:   "an expirer",
			raised: []posted{alert("LapseWorkerMissing", "binary", "expirer"), alert("LapseNoConsumers", "queue", "lapse.due.unlock")},
			told:   []string{"LapseWorkerMissing"},
			silent: []string{"LapseNoConsumers"},
		},
		{
			name:   "a notifier, and nobody consumes what is due",
			raised: []posted{alert("LapseWorkerMissing", "binary", "notifier"), alert("LapseNoConsumers", "queue", "lapse.due.unlock")},
			told:   []string{"LapseNoConsumers", "LapseWorkerMissing"},
		},
		{
			name:   "the clock",
			raised: []posted{alert("LapseClockStopped"), alert("LapseOverdue"), alert("LapseDueBacklogGrows", "queue", "lapse.due.unlock")},
			told:   []string{"LapseClockStopped"},
			silent: []string{"LapseDueBacklogGrows", "LapseOverdue"},
		},
	} {
		for i := range c.raised {
			c.raised[i].Labels["case"] = c.name
		}
		raise(t, url, c.raised, time.Now().Add(time.Hour))
		require.Eventually(t, func() bool { // an inhibition is seen with the next look at the groups
			raised := slices.Concat(c.told, c.silent)
			slices.Sort(raised)
			return slices.Equal(seen(t, url, true), c.told) && slices.Equal(seen(t, url, false), raised)
		}, 20*time.Second, 200*time.Millisecond, "%s: told %v of %v", c.name, seen(t, url, true), seen(t, url, false))
		raise(t, url, c.raised, time.Now())
		require.Eventually(t, func() bool { return len(seen(t, url, false)) == 0 }, 20*time.Second, 200*time.Millisecond)
	}
}

func raise(t *testing.T, url string, alerts []posted, until time.Time) {
	t.Helper()
	type lasting struct {
		posted
		StartsAt time.Time `json:"startsAt"`
		EndsAt   time.Time `json:"endsAt"`
	}
	var all []lasting
	for _, a := range alerts {
		all = append(all, lasting{a, time.Now().Add(-time.Minute), until})
	}
	body, err := json.Marshal(all)
	require.NoError(t, err)
	status, answer := ask(t.Context(), http.MethodPost, url+"/api/v2/alerts", body)
	require.Equal(t, http.StatusOK, status, "%s", answer)
}

// seen names the alerts that there are: those that somebody is told of, or all.
func seen(t *testing.T, url string, told bool) []string {
	t.Helper()
	query := "?active=true&inhibited=true"
	if told {
		query = "?active=true&inhibited=false"
	}
	_, body := ask(t.Context(), http.MethodGet, url+"/api/v2/alerts"+query, nil)
	var all []posted
	if json.Unmarshal(body, &all) != nil {
		return nil
	}
	var names []string
	for _, a := range all {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return names
}
