package firewall

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// nft applies rules through the kernel's own interface, without a program: both families are in one table of ours,
// `inet leno`. It needs CAP_NET_ADMIN, and Linux 5.2 for masquerading in that family.
type nft struct {
	logger hclog.Logger
	open   func() (*netfilter.Conn, error)

	// clean means that this process saw no table of ours and wants none. No other program makes it, so there is
	// nothing to look for.
	clean bool

	// The kernel's rules had this generation when they agreed with these; 0 if they may not agree.
	agreed     uint32
	agreedWith rules
}

var _ tableWriter = (*nft)(nil)

// newNFTables returns an applier for nftables. It changes nothing on the host.
func newNFTables(logger hclog.Logger) *nft {
	return &nft{logger: logger, open: netfilter.Open}
}

func (n *nft) kind() string { return kindNFTables }

// stamp is constant: there is no program that could be replaced.
func (n *nft) stamp() string { return "" }

func (n *nft) inspect(ctx context.Context, _ rules) finding {
	_, err := n.compare(ctx, nil, false)
	if err != nil {
		err = fmt.Errorf("nftables: %w", nftUnlisted(err))
	}
	return finding{err: err}
}

// apply writes one table, so there is no further part to continue with after an error.
func (n *nft) apply(ctx context.Context, want rules) (written []string, err error) {
	needed := !want.isEmpty() || !want.guard.isEmpty()
	if !needed && n.clean {
		return nil, nil
	}
	generation, unknown := netfilter.Generation() // before the listing, so that later changes show
	if needed && unknown == nil && generation != 0 && generation == n.agreed && reflect.DeepEqual(want, n.agreedWith) {
		return nil, nil
	}
	n.agreed = 0
	chains := nftChains(want)
	change, err := n.compare(ctx, chains, want.keep)
	if err != nil && !needed && ctx.Err() == nil {
		n.logger.Debug("cannot look for leftover firewall rules", "table", nftTableName, "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", nftUnlisted(err))
	}
	if !change.isEmpty() {
		if err := n.commit(ctx, change, chains, want.keep); err != nil {
			return nil, fmt.Errorf("nftables: write table %s: %w", nftTableName, nftUnwritten(err))
		}
		written = []string{"nftables table " + nftTableName + ": " + strings.Join(change.wrong, ", ")}
		if err := want.guard.releasePorts(); err != nil {
			n.logger.Debug("a container may have taken the port of a tunnel before", "error", err)
		}
	} else if unknown == nil {
		n.agreed, n.agreedWith = generation, want
	}
	n.clean = !needed && !want.keep
	return written, nil
}

// compare lists the table and returns the necessary changes. With keep, there may be chains other than the guard's.
func (n *nft) compare(ctx context.Context, want []nftChain, keep bool) (nftChange, error) {
	if err := ctx.Err(); err != nil {
		return nftChange{}, err
	}
	conn, err := n.open()
	if err != nil {
		return nftChange{}, err
	}
	state, err := readOwnTable(conn)
	for _, chain := range state.chains {
		if keep && !slices.Contains([]string{tunnelsChain, inputsChain, sourcesChain}, chain.name) {
			want = append(want, chain)
		}
	}
	return nftChangeOf(state, want), errors.Join(err, conn.CloseLasting())
}

// commit writes the change. When the answers exceeded the socket's buffer, a new listing tells whether the change was
// made.
func (n *nft) commit(ctx context.Context, change nftChange, want []nftChain, keep bool) error {
	conn, err := n.open()
	if err != nil {
		return err
	}
	err = errors.Join(writeOwnTable(conn, change), conn.CloseLasting())
	if errors.Is(err, unix.ENOBUFS) {
		if left, again := n.compare(ctx, want, keep); again == nil && left.isEmpty() {
			return nil
		}
	}
	return err
}

// nftUnlisted explains the error of a listing.
func nftUnlisted(err error) error {
	if netfilter.IsNFTMissing(err) {
		return fmt.Errorf("%w: this kernel has no nf_tables (module nf_tables): %w", ErrNotInstalled, err)
	}
	return netfilter.ExplainNFT(err)
}

// nftUnwritten explains the error of a transaction, which creates everything it names except types of chains and
// expressions.
func nftUnwritten(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: this kernel cannot masquerade in the inet family "+
			"(Linux 5.2 with the modules nft_chain_nat and nft_masq): %w", ErrNotInstalled, err)
	}
	return netfilter.ExplainNFT(err)
}
