package config

import (
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/email"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
)

// Notice is the section of the notifier: what all channels have in common, and the channels with providers of their own.
type Notice struct {
	notice.Config `koanf:",squash"`
	Email         email.Config `koanf:"email"` // not needed unless it is among notice.channels
	Gateway       Gateways     `koanf:"gateway"`
}

// Gateways are those of the channels that a gateway serves. One that is not among notice.channels needs no settings.
type Gateways struct {
	SMS  gateway.Config `koanf:"sms"`
	Push gateway.Config `koanf:"push"`
}

// DefaultNotice returns the defaults.
func DefaultNotice() Notice {
	return Notice{
		Config: notice.DefaultConfig(), Email: email.DefaultConfig(),
		Gateway: Gateways{SMS: gateway.DefaultConfig(), Push: gateway.DefaultConfig()},
	}
}

// Validate reports every fault; of a channel's provider if the channel is there.
func (c Notice) Validate() error {
	errs := []error{c.Config.Validate()}
	for _, p := range []struct {
		channel coupon.Channel
		section string
		check   interface{ Validate() error }
	}{
		{coupon.ChannelEmail, "email", c.Email},
		{coupon.ChannelSMS, "gateway.sms", c.Gateway.SMS},
		{coupon.ChannelPush, "gateway.push", c.Gateway.Push},
	} {
		if !c.Has(p.channel) {
			continue
		}
		for _, err := range flatten(p.check.Validate()) {
			errs = append(errs, fmt.Errorf("%s.%w", p.section, err))
		}
	}
	if most := c.Limits.Email.Concurrency; c.Has(coupon.ChannelEmail) && c.Email.Connections < most { // letters would wait for them, and be put off as busy
		errs = append(errs, fmt.Errorf("email.connections: must be at least limits.email.concurrency (%d), got %d", most, c.Email.Connections))
	}

	return errors.Join(errs...)
}
