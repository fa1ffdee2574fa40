package receive

import (
	"sync"
	"time"
)

// Act is what a receiver does in place of its work.
type Act string

// The acts. Which of them a receiver knows is said there.
const (
	ActHang     Act = "hang"     // silent for ever
	ActCode     Act = "code"     // an answer with Fault.Code
	ActCut      Act = "cut"      // the connection is reset; of HTTP in the middle of the answer
	ActDrop     Act = "drop"     // HTTP: the connection is reset before a byte of an answer
	ActSlow     Act = "slow"     // the right answer, Fault.Delay later
	ActGarbage  Act = "garbage"  // HTTP: 200 with a body that is no JSON
	ActEndless  Act = "endless"  // HTTP: 200 with a body without end
	ActRedirect Act = "redirect" // HTTP: 307 to Fault.Text
)

// Fault is a provider's bad day. The zero Fault is none.
type Fault struct {
	Act        Act
	Stage      Stage         // of SMTP
	Code       int           // of ActCode
	Text       string        // of ActCode: the answer's text, after its code (SMTP may begin with an enhanced one) or as its body
	RetryAfter string        // of ActCode over HTTP: the header
	Delay      time.Duration // of ActSlow
	Times      int           // it happens so often, then no more; 0: until it is changed
}

// faults holds the one in force.
type faults struct {
	mu    sync.Mutex
	fault Fault
	over  chan struct{} // closed when the fault is changed
}

// set changes it and lets go what hangs in the one before.
func (f *faults) set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over != nil {
		close(f.over)
	}
	f.fault, f.over = fault, make(chan struct{})
}

// at gives the fault that happens now at this stage, and when it is over.
func (f *faults) at(stage Stage) (Fault, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault := f.fault
	if fault.Act == "" || fault.Stage != stage {
		return Fault{}, nil
	}
	if fault.Times > 0 {
		if f.fault.Times--; f.fault.Times == 0 {
			f.fault = Fault{}
		}
	}
	return fault, f.over
}

// bell is rung whenever something arrived.
type bell struct{ next chan struct{} }

func newBell() bell { return bell{next: make(chan struct{})} }

// ring is called under the lock that guards what it tells of.
func (b *bell) ring() {
	close(b.next)
	b.next = make(chan struct{})
}
