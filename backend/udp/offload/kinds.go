package offload

// Kinds are the kinds of super packets that a device takes: TCP where it has
// TUN_F_TSO4 and TUN_F_TSO6, UDP where it has TUN_F_USO4 and TUN_F_USO6 (Linux
// 6.2).
type Kinds struct{ TCP, UDP bool }

// Join says which kinds are joined from here on. It is called when the Joiner
// is empty.
func (j *Joiner) Join(k Kinds) { j.tcp, j.udp = k.TCP, k.UDP }
