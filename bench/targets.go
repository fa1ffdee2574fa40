package main

// A ratio is one median divided by another of the same run, or a figure made of several.
type ratio struct {
	name  string
	op    string // empty: reported, and held against nothing
	bound float64
	value func(r *Result) (float64, bool)
}

const (
	atLeast = ">="
	atMost  = "<="
	below   = "<"
)

func holds(v float64, op string, bound float64) bool {
	switch op {
	case atLeast:
		return v >= bound
	case atMost:
		return v <= bound
	case below:
		return v < bound
	default:
		return true
	}
}

// over divides one median by another.
func over(scenario, a, b, metric string) func(r *Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		x, ok := r.of(scenario, a, metric)
		y, also := r.of(scenario, b, metric)
		if !ok || !also || y == 0 {
			return 0, false
		}
		return x / y, true
	}
}

// serialLimit is what is possible if broker and database, each with the machine to itself, took turns.
func serialLimit(r *Result) (float64, bool) {
	b, ok := r.of("spike", "bare_broker", "per_s")
	d, also := r.of("spike", "bare_database", "per_s")
	if !ok || !also || b <= 0 || d <= 0 {
		return 0, false
	}
	return 1 / (1/b + 1/d), true
}

func toSerialLimit(subject string) func(r *Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		v, ok := r.of("spike", subject, "per_s")
		limit, also := serialLimit(r)
		if !ok || !also {
			return 0, false
		}
		return v / limit, true
	}
}

// ratios that a run can give. The cliff is the spike; lapse does in it what the rivals do (publisher and expirer), lapse_all runs the notifier too.
func ratios() []ratio {
	return []ratio{
		{"cliff_vs_asynq", atLeast, 3.5, over("spike", "lapse", "asynq", "per_s")},
		{"cliff_vs_zset", atLeast, 25, over("spike", "lapse", "zset", "per_s")},
		{"cliff_vs_naive_ttl", atLeast, 6, over("spike", "lapse", "naive_ttl", "per_s")},
		{"cliff_vs_cron", "", 0, over("spike", "lapse", "cron", "per_s")},
		{"cliff_vs_serial_limit", atLeast, 0.65, toSerialLimit("lapse")},
		{"cliff_all_vs_asynq", "", 0, over("spike", "lapse_all", "asynq", "per_s")},
		{"cliff_all_vs_zset", "", 0, over("spike", "lapse_all", "zset", "per_s")},
		{"cliff_all_vs_naive_ttl", "", 0, over("spike", "lapse_all", "naive_ttl", "per_s")},
		{"cliff_all_vs_cron", "", 0, over("spike", "lapse_all", "cron", "per_s")},
		{"cliff_all_vs_serial_limit", "", 0, toSerialLimit("lapse_all")},
		{"spike_1m_vs_100k", atLeast, 0.85, over("spike", "lapse_10x", "lapse_all", "per_s")},
		{"api_p99_spike_vs_calm", atMost, 3, over("api", "spike", "calm", "pair_p99_ms")},
		{"max_rate_vs_setting", atMost, 1.1, ofSetting},
		{"pending_1m_vs_10k", atLeast, 0.85, over("pending", "many", "few", "per_s")},
		{"rows_30m_vs_100k", atLeast, 0.85, over("rows", "many", "few", "per_s")},
	}
}

func ofSetting(r *Result) (float64, bool) {
	v, ok := r.of("max_rate", "lapse", "per_s")
	set, also := r.of("max_rate", "lapse", "max_rate_per_s")
	if !ok || !also || set == 0 {
		return 0, false
	}
	return v / set, true
}

// bound is a median that is held against a number.
type bound struct {
	scenario, subject, metric string
	op                        string
	bound                     float64
}

func bounds() []bound {
	var out []bound
	for _, subject := range []string{"lapse", "lapse_all", "lapse_10x"} {
		for _, metric := range []string{"early", "lost", "not_expired"} {
			out = append(out, bound{"spike", subject, metric, atMost, 0})
		}
	}
	for _, worker := range allWorkers() {
		out = append(out, bound{"spike", "lapse_10x", "rss_" + worker + "_mib", atMost, 100})
	}
	return append(out,
		bound{"steady", "lapse", "p99_ms", atMost, 400},
		bound{"steady", "lapse", "p999_ms", atMost, 1000},
		bound{"exact5k", "lapse", "p99_ms", atMost, 1000},
		bound{"issue", "lapse", "per_s", atLeast, 10_000},
		bound{"api", "calm", "errors", atMost, 0},
		bound{"api", "spike", "errors", atMost, 0},
		bound{"promote", "lapse", "per_s", atLeast, 15_000},
		bound{"idle", "lapse", "cpu_percent", below, 2},
		bound{"idle", "lapse", "statements_per_s", below, 40},
	)
}

// judge fills in ratios and targets from what was measured.
func (r *Result) judge() {
	r.Ratios, r.Targets = make(map[string]float64), []Target{}
	hold := func(name string, v float64, op string, to float64) {
		r.Targets = append(r.Targets, Target{Name: name, Value: v, Op: op, Bound: to, Reached: holds(v, op, to)})
	}
	for _, x := range ratios() {
		v, ok := x.value(r)
		if !ok {
			continue
		}
		r.Ratios[x.name] = v
		if x.op != "" {
			hold(x.name, v, x.op, x.bound)
		}
		if x.name == "max_rate_vs_setting" {
			hold(x.name, v, atLeast, 0.9)
		}
	}
	for _, x := range bounds() {
		if v, ok := r.of(x.scenario, x.subject, x.metric); ok {
			hold(x.scenario+"."+x.subject+"."+x.metric, v, x.op, x.bound)
		}
	}
}
