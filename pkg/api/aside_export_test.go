package api

// Waiting is how many triggers wait to be published.
func (a *Aside) Waiting() int { return len(a.queue) }

// Remembered is how many coupons are known to have rung.
func (a *Aside) Remembered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(len(a.rung), len(a.past))
}
