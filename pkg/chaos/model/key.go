package model

import "strconv"

// keyOf names a coupon of an order, as Facts.RedeemRefused does.
func keyOf(id uint64, order string) string { return strconv.FormatUint(id, 10) + ":" + order }
