package store

import "sync"

// wake tells the relay of this process that a commit left rows in the outbox. A signal that nobody takes is
// dropped: the relay polls as well.
type wake struct {
	mu   sync.Mutex
	subs []chan struct{}
}

// OutboxWritten gives a channel that gets a signal after commits that wrote outbox rows; signals coalesce.
func (s *Store) OutboxWritten() <-chan struct{} {
	ch := make(chan struct{}, 1)
	s.wake.mu.Lock()
	defer s.wake.mu.Unlock()
	s.wake.subs = append(s.wake.subs, ch)
	return ch
}

func (w *wake) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range w.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
