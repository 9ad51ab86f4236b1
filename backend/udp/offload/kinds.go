package offload

// Kinds holds the kinds of super packets that a device accepts: TCP if it has TUN_F_TSO4 and
// TUN_F_TSO6, UDP if it has TUN_F_USO4 and TUN_F_USO6 (Linux 6.2).
type Kinds struct{ TCP, UDP bool }

// Join sets which kinds are joined from now on. It must be called while the Joiner is empty.
func (j *Joiner) Join(k Kinds) { j.tcp, j.udp = k.TCP, k.UDP }
