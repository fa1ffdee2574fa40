package telemetry

import (
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LogConfig says what is logged and how.
type LogConfig struct {
	// Level is the least severe level that is logged: debug, info, warn or error. Default info.
	Level string `koanf:"level"`
	// Format is json, or console for reading at the desk. Default json.
	Format string `koanf:"format"`
}

// DefaultLogConfig returns JSON at info.
func DefaultLogConfig() LogConfig { return LogConfig{Level: "info", Format: "json"} }

// Validate reports every fault, each beginning with its field's name.
func (c LogConfig) Validate() error {
	var errs []error
	if _, ok := c.level(); !ok {
		errs = append(errs, fmt.Errorf("level: must be debug, info, warn or error, got %q", c.Level))
	}
	if c.Format != "json" && c.Format != "console" {
		errs = append(errs, fmt.Errorf("format: must be json or console, got %q", c.Format))
	}

	return errors.Join(errs...)
}

// level is strict: zap itself would take INFO and fatal, too.
func (c LogConfig) level() (zapcore.Level, bool) {
	switch c.Level {
	case "debug":
		return zapcore.DebugLevel, true
	case "info":
		return zapcore.InfoLevel, true
	case "warn":
		return zapcore.WarnLevel, true
	case "error":
		return zapcore.ErrorLevel, true
	default:
		return zapcore.InvalidLevel, false
	}
}

// NewLogger returns a logger that writes one entry a line to w, which need not be safe for concurrent use. Times are UTC with
// milliseconds. Nothing is sampled away: loops keep quiet by Repeats.
func NewLogger(c LogConfig, w io.Writer, fields ...zap.Field) (*zap.Logger, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("making the logger: %w", err)
	}
	enc := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "component", MessageKey: "msg", CallerKey: zapcore.OmitKey,
		LineEnding: zapcore.DefaultLineEnding, EncodeLevel: zapcore.LowercaseLevelEncoder,
		EncodeTime: func(t time.Time, out zapcore.PrimitiveArrayEncoder) {
			out.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
		},
		EncodeDuration: zapcore.StringDurationEncoder, EncodeName: zapcore.FullNameEncoder,
	}
	level, _ := c.level()
	encoder := zapcore.NewJSONEncoder(enc)
	if c.Format == "console" {
		encoder = zapcore.NewConsoleEncoder(enc)
	}

	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level)).With(fields...), nil
}
