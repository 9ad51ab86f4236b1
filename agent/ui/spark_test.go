package ui

import (
	"slices"
	"testing"

	"github.com/lenonet/leno/api"
)

func TestSpark(t *testing.T) {
	many := slices.Repeat([]int8{0}, 500)
	for _, tt := range []struct {
		loss              []int8
		sent, lost, label string
	}{
		{nil, "", "", "Loss in the last under 1 min: none"},
		{[]int8{0}, "M238 19H240", "", "Loss in the last 2 min: none"},
		{[]int8{0, 0, 0}, "M234 19H240", "", "Loss in the last 6 min: none"},
		{[]int8{0, -1, 0, 1}, "M232 19H234M236 19H240", "M239 19v-2", "Loss in the last 8 min: up to 1 % in 2 min, last at 12:00:00 UTC"},
		{[]int8{100, 50, 0}, "M234 19H240", "M235 19v-19M237 19v-10", "Loss in the last 6 min: up to 100 % in 2 min, last at 11:58:00 UTC"},
		{[]int8{-1, -1}, "", "", "Loss in the last 4 min: none"},
		{many, "M0 19H240", "", "Loss in the last 4 h: none"},
	} {
		got := newSpark(noon, &api.PathHistory{StepSeconds: 120, Last: noon, Loss: tt.loss})
		if got.Sent != tt.sent || got.Lost != tt.lost || got.Label != tt.label {
			t.Errorf("%v: %+v", tt.loss, got)
		}
	}
}
