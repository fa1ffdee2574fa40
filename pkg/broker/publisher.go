package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// Publisher publishes with confirms over one connection and a few channels.
// Publish may be called by many at once; it needs Run to be running.
type Publisher struct {
	c       *Client
	jobs    chan *job
	stopped chan struct{}
	flying  atomic.Int64

	mu      sync.Mutex
	sess    *session      // nil: not connected
	open    int           // channels of sess that take messages
	changed chan struct{} // closed and replaced whenever sess changes
	why     error         // there is no session
	refused error         // what the broker last forbade
	since   time.Time     // when
}

// refusedFor is how long what the broker forbade is told of: nobody tries in between, and then it is tried again.
const refusedFor = 10 * time.Second

// NewPublisher does not connect; Run does.
func (c *Client) NewPublisher() *Publisher {
	return &Publisher{c: c, jobs: make(chan *job), stopped: make(chan struct{}), changed: make(chan struct{})}
}

// Run connects, and again whenever the connection is lost, until ctx ends.
// Then it lets what is in flight be confirmed (drain_timeout) and returns nil.
// It is called once; stop those who publish first.
func (p *Publisher) Run(ctx context.Context) error {
	defer close(p.stopped)
	log := p.c.log.With(zap.String("use", "publish"))
	retry := p.c.attempts(log)
	for ctx.Err() == nil {
		s, err := p.c.open(ctx, "publish")
		if err != nil {
			p.failed(err)
			retry.failed(ctx, "cannot open a session with RabbitMQ", err)
			continue
		}
		log.Info("connected to RabbitMQ", zap.String("address", s.address), zap.Int("attempts", retry.n+1))
		since := time.Now()
		p.serve(ctx, s)
		retry.lasted(since)
		p.failed(s.err)
		if ctx.Err() == nil && !retry.failed(ctx, "lost the connection to RabbitMQ", s.err) {
			break
		}
	}
	return nil
}

// serve works on one session until it or ctx ends.
func (p *Publisher) serve(ctx context.Context, s *session) {
	p.use(s)
	p.c.metrics.connected.WithLabelValues("publish").Inc()
	// stop ends the lanes with the session, too.
	lanes, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range p.c.cfg.Channels {
		wg.Go(func() { p.lanes(lanes, s) })
	}
	p.watch(ctx, s)
	stop()
	wg.Wait()
	p.use(nil)
	s.close()
	p.c.metrics.blocked.Set(0)
	p.c.metrics.connected.WithLabelValues("publish").Dec()
}

// watch follows the session's state until it or ctx ends.
func (p *Publisher) watch(ctx context.Context, s *session) {
	was := ""
	for {
		reason, changed := s.state()
		if reason != was {
			was = reason
			if reason != "" {
				p.c.metrics.blocked.Set(1)
				p.c.log.Warn("RabbitMQ blocks publishing", zap.String("reason", reason))
			} else {
				p.c.metrics.blocked.Set(0)
				p.c.log.Info("RabbitMQ takes messages again")
			}
			p.notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-s.done:
			return
		case <-changed:
		}
	}
}

// lanes opens channels, one after the other as they end, until ctx or the
// session ends.
func (p *Publisher) lanes(ctx context.Context, s *session) {
	retry := p.c.attempts(p.c.log)
	for ctx.Err() == nil && s.alive() {
		since := time.Now()
		err := p.runLane(ctx, s)
		retry.lasted(since)
		if err == nil || ctx.Err() != nil || !s.alive() {
			return
		}
		p.forbidden(err)
		retry.failed(ctx, "RabbitMQ closed a publishing channel", err)
	}
}

// failed notes why there is no session.
func (p *Publisher) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = explainChannel(err)
}

// forbidden notes what the user may not do.
func (p *Publisher) forbidden(err error) {
	var said *amqp.Error
	if !errors.As(err, &said) || said.Code != amqp.AccessRefused {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused, p.since = explainChannel(err), time.Now()
}

func (p *Publisher) use(s *session) {
	p.mu.Lock()
	p.sess, p.open, p.why = s, 0, nil
	p.mu.Unlock()
	p.notify()
}

// lane counts the channels that take messages.
func (p *Publisher) lane(change int) {
	p.mu.Lock()
	p.open += change
	p.mu.Unlock()
	p.notify()
}

func (p *Publisher) notify() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// status says whether publishing is possible now (nil), and gives a channel
// that is closed at the next change.
func (p *Publisher) status() (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.sess == nil && p.why != nil:
		return p.changed, fmt.Errorf("%w: %w", ErrNotSent, p.why)
	case p.sess == nil || p.open <= 0:
		return p.changed, ErrNotSent
	}
	if reason, _ := p.sess.state(); reason != "" {
		return p.changed, fmt.Errorf("%w: %s", ErrBlocked, reason)
	}
	return p.changed, nil
}

// Ready is nil if there is a connection and the broker does not block it.
func (p *Publisher) Ready() error {
	_, err := p.status()
	return err
}

// Healthy is Ready, and nothing was forbidden of late. Unlike with Ready there is work to do all the same: only who tries finds out
// that it is allowed again.
func (p *Publisher) Healthy() error {
	if err := p.Ready(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused != nil && time.Since(p.since) < refusedFor {
		return p.refused
	}
	return nil
}

// Blocked says whether the broker blocks publishing now (resource alarm). It
// tells a connection so only once that has tried to publish.
func (p *Publisher) Blocked() bool { return errors.Is(p.Ready(), ErrBlocked) }

// InFlight is how many messages have been sent and not confirmed yet.
func (p *Publisher) InFlight() int { return int(p.flying.Load()) }

// WaitReady waits until Ready is nil or ctx ends.
func (p *Publisher) WaitReady(ctx context.Context) error {
	for {
		changed, err := p.status()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting to publish: %w", errors.Join(err, ctx.Err()))
		case <-p.stopped:
			return ErrStopped
		case <-changed:
		}
	}
}

// Publish sends the messages in their order over one channel and waits for
// their confirms, at most until ctx or publish_timeout ends. The answer has
// one result for each message: nil, or an error that wraps ErrReturned,
// ErrNacked, ErrUnknown, ErrBlocked, ErrNotSent, ErrStopped or ErrInvalid.
// Only ErrUnknown leaves open whether the message is stored.
//
// The bodies must not be changed afterwards. While there is no connection it waits for one; while the broker blocks
// publishing it answers ErrBlocked at once (see WaitReady).
func (p *Publisher) Publish(ctx context.Context, msgs []Message) []error {
	j := newJob(msgs)
	if j.left > 0 {
		p.submit(ctx, j)
	}
	p.c.metrics.count(j.results)
	return j.results
}

func (p *Publisher) submit(outer context.Context, j *job) {
	ctx, cancel := context.WithTimeout(outer, p.c.cfg.PublishTimeout)
	defer cancel()
	if err := p.Ready(); errors.Is(err, ErrBlocked) {
		j.abandon(nil, err)
		return
	}
	select {
	case p.jobs <- j:
	case <-p.stopped:
		j.abandon(nil, ErrStopped)
		return
	case <-ctx.Done():
		j.abandon(nil, fmt.Errorf("%w: %w", ErrNotSent, ctx.Err()))
		return
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		s := j.abandon(fmt.Errorf("%w: %w", ErrUnknown, ctx.Err()), fmt.Errorf("%w: %w", ErrNotSent, ctx.Err()))
		if s == nil || outer.Err() != nil {
			return
		}
		// The broker had all the time there is. A connection that does not
		// confirm is not worth keeping, unless it is known to be blocked.
		if reason, _ := s.state(); reason == "" {
			s.kill(errors.New("no confirm within publish_timeout"))
		}
	}
}

// job is one call of Publish on its way through a lane.
type job struct {
	msgs  []Message
	ready []amqp.Publishing
	done  chan struct{} // closed when left is 0

	mu       sync.Mutex
	results  []error
	state    []byte // waiting, sent, settled
	left     int    // not settled
	given    bool   // up: the caller has gone with the results
	sentOver *session
}

const (
	waiting byte = iota
	sent
	settled
)

func newJob(msgs []Message) *job {
	j := &job{
		// The caller may go, and use its slice again, while a lane is at work.
		msgs: slices.Clone(msgs), ready: make([]amqp.Publishing, len(msgs)), results: make([]error, len(msgs)),
		state: make([]byte, len(msgs)), done: make(chan struct{}), left: len(msgs),
	}
	for i := range msgs {
		var err error
		if j.ready[i], err = msgs[i].publishing(); err != nil {
			j.results[i], j.state[i] = err, settled
			j.left--
		}
	}
	return j
}

type next byte

const (
	doSend next = iota
	doSkip      // it was never to be sent
	doStop      // nobody waits for the job any more
)

// begin marks message i as sent, unless it is not to be sent.
func (j *job) begin(i int, s *session) next {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.given:
		return doStop
	case j.state[i] != waiting:
		return doSkip
	}
	j.state[i], j.sentOver = sent, s
	return doSend
}

// undo takes begin back: the message did not get out.
func (j *job) undo(i int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.given {
		j.state[i] = waiting
	}
}

// settle sets the result of message i, unless the caller has gone.
func (j *job) settle(i int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.given || j.state[i] == settled {
		return
	}
	j.results[i], j.state[i] = err, settled
	if j.left--; j.left == 0 {
		close(j.done)
	}
}

// refuse settles what was not sent yet.
func (j *job) refuse(err error) {
	for i := range j.msgs {
		j.mu.Lock()
		unsent := j.state[i] == waiting
		j.mu.Unlock()
		if unsent {
			j.settle(i, err)
		}
	}
}

// abandon settles everything: what was sent by one error, what was not by the
// other. It answers the session that owes confirms, if any.
func (j *job) abandon(wasSent, notSent error) *session {
	j.mu.Lock()
	defer j.mu.Unlock()
	owes := false
	for i, st := range j.state {
		switch st {
		case waiting:
			j.results[i] = notSent
		case sent:
			j.results[i] = wasSent
			owes = true
		}
	}
	j.given = true
	if owes {
		return j.sentOver
	}
	return nil
}
