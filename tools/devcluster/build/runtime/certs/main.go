// Command certs makes the keys of one cluster in a folder: a certificate authority (ca), the API
// server's serving certificate (server), its client certificate for kubelets (kubelet-client) and
// the key that signs service-account tokens (service-accounts).
//
//	certs FOLDER NAME-OR-ADDRESS...
//
// The API server can make a certificate of its own, but 127.0.0.1, where people and tests reach
// it through a forwarder, is not among its names then.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: certs FOLDER NAME-OR-ADDRESS...")
	}
	folder := os.Args[1]
	authority := template("devcluster-ca")
	authority.IsCA = true
	authority.KeyUsage |= x509.KeyUsageCertSign
	authorityKey := issue(folder, "ca", authority, authority, nil)

	server := template("kube-apiserver")
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range os.Args[2:] {
		if address := net.ParseIP(name); address != nil {
			server.IPAddresses = append(server.IPAddresses, address)
		} else {
			server.DNSNames = append(server.DNSNames, name)
		}
	}
	issue(folder, "server", server, authority, authorityKey)

	client := template("kube-apiserver-kubelet-client")
	client.Subject.Organization = []string{"system:masters"}
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	issue(folder, "kubelet-client", client, authority, authorityKey)

	writeKey(folder, "service-accounts", newKey())
}

// template is a certificate for a year, from an hour ago since clocks differ.
func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	check(err)
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
}

// issue writes NAME.crt and NAME.key; without a parent's key the certificate signs itself.
func issue(folder, name string, cert, parent *x509.Certificate, parentKey crypto.Signer) crypto.Signer {
	key := newKey()
	signer := parentKey
	if signer == nil {
		signer = key
	}
	// The authority's template has no key id until it is issued: strict verifiers (Python 3.13)
	// refuse a certificate that does not name its issuer's key.
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
	check(err)
	if parsed, err := x509.ParseCertificate(der); err == nil && parentKey == nil {
		cert.SubjectKeyId = parsed.SubjectKeyId
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	check(os.WriteFile(filepath.Join(folder, name+".crt"), block, 0o644))
	writeKey(folder, name, key)
	return key
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	return key
}

func writeKey(folder, name string, key *ecdsa.PrivateKey) {
	der, err := x509.MarshalECPrivateKey(key)
	check(err)
	block := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	check(os.WriteFile(filepath.Join(folder, name+".key"), block, 0o600))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
