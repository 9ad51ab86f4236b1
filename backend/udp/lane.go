package udp

// lane is one goroutine that carries packets both ways between a queue of the device and a socket.
// The kernel keeps the packets of a flow on one queue and one socket, so they stay in order. The
// goroutine that brings a packet to a container is also still awake when the container answers.
//
// While there is traffic it does not wait at all. Without traffic it sleeps in poll(2) instead of
// the runtime's poller, because a thread wakes up sooner from there.
type lane struct {
	e *engine

	device    Device // to write to
	bind      Bind   // to send with
	attached  bool   // there is a device
	listening bool   // there is a bind
	reads     bool   // this lane reads the device
	receives  bool   // this lane receives from the bind

	sender   *sender
	receiver *receiver
}

// yields is how often an idle lane lets other threads run and looks again before it sleeps.
const yields = 3

func newLane(e *engine) *lane {
	return &lane{e: e, sender: newSender(), receiver: newReceiver()}
}

// take gives the lane the i-th ends. Where one side has fewer, the lane writes to an end that
// another lane reads.
func (l *lane) take(i int) {
	l.device, l.attached = l.e.devices.at(i)
	l.bind, l.listening = l.e.binds.at(i)
	l.reads, l.receives = i < len(l.e.devices.all), i < len(l.e.binds.all)
}

// run carries packets until the engine pauses.
func (l *lane) run() {
	for idle := 0; !l.e.pausing.Load(); {
		if l.fromWire()+l.fromDevice() > 0 {
			idle = 0
			continue
		}
		if idle < yields {
			idle++
			yield()
			continue
		}
		idle = 0
		l.wait()
	}
}

// fromDevice carries the frames that the device has and returns their number.
func (l *lane) fromDevice() int {
	if !l.reads {
		return 0
	}
	n, err := l.device.Read(l.sender.buf, l.sender.frames)
	if err != nil {
		l.reads = false
		l.e.lost("device", &l.e.devices.broken, err)
		return 0
	}
	if n > 0 {
		l.toWire(l.sender.frames[:n])
	}
	return n
}

// fromWire carries the messages that the socket has and returns their number.
func (l *lane) fromWire() int {
	if !l.receives {
		return 0
	}
	n, err := l.bind.Receive(l.receiver.in)
	if err != nil {
		l.receives = false
		l.e.lost("socket", &l.e.binds.broken, err)
		return 0
	}
	if n > 0 {
		l.toDevice(l.receiver.in[:n])
	}
	return n
}
