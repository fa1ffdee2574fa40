package email

// Parse is parse.
func Parse(address string) (ready string, smtpUTF8 bool, err error) { return parse(address) }
