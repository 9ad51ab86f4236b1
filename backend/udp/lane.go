package udp

// lane is one goroutine that carries packets both ways between a queue of the
// device and a socket: the kernel keeps the packets of a flow to one queue and
// to one socket, so that they stay in order, and who brings a packet to a
// container is awake when the container answers.
//
// While there is traffic it does not wait at all; without any it sleeps in
// poll(2), beside the runtime's poller, from where a thread is back sooner.
type lane struct {
	e *engine

	device    Device // to write to
	bind      Bind   // to send with
	attached  bool   // there is a device
	listening bool   // there is a bind
	reads     bool   // the device is this lane's to read
	receives  bool   // the bind is this lane's to receive from

	sender   *sender
	receiver *receiver
}

// yields is how often a lane that found nothing lets other threads run and looks
// again before it goes to sleep.
const yields = 3

func newLane(e *engine) *lane {
	return &lane{e: e, sender: newSender(), receiver: newReceiver()}
}

// take gives the lane the i-th ends. Where one side has fewer, it writes to one
// that is another lane's to read.
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

// fromDevice carries what the device has and says how much that was.
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

// fromWire carries what the socket has and says how much that was.
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
