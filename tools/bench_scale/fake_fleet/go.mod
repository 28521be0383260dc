module rlfleet.dev/fakefleet

go 1.26
