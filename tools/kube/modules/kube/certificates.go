package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is longer than any test cluster is kept, and short enough that a copied key is soon worth nothing.
const validity = 30 * 24 * time.Hour

// certificateRequest is one entry of the JSON list on stdin. With hosts the certificate is a server's too.
type certificateRequest struct {
	Name          string   `json:"name"` // of the files: NAME.crt and NAME.key
	CommonName    string   `json:"common_name"`
	Organizations []string `json:"organizations"`
	Hosts         []string `json:"hosts"`
}

// certificates signs what stdin requests with the authority in FOLDER, which the first call makes,
// along with the key pair that signs the tokens of service accounts.
func certificates(arguments []string, stdin io.Reader) error {
	if len(arguments) != 1 {
		return errors.New("usage: kube certificates FOLDER < requests.json")
	}
	folder := arguments[0]
	var requests []certificateRequest
	if err := json.NewDecoder(stdin).Decode(&requests); err != nil {
		return fmt.Errorf("certificate requests: %w", err)
	}
	authority, signer, err := readAuthority(folder)
	if errors.Is(err, os.ErrNotExist) {
		authority, signer, err = newAuthority(folder)
	}
	if err != nil {
		return err
	}
	for _, request := range requests {
		if err := sign(folder, request, authority, signer); err != nil {
			return fmt.Errorf("certificate %s: %w", request.Name, err)
		}
	}
	return nil
}

func newAuthority(folder string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, nil, err
	}
	tokens, err := newKey(folder, "tokens")
	if err != nil {
		return nil, nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&tokens.PublicKey)
	if err != nil {
		return nil, nil, err
	}
	if err := write(folder, "tokens.pub", "PUBLIC KEY", public, 0o644); err != nil {
		return nil, nil, err
	}
	key, err := newKey(folder, "ca")
	if err != nil {
		return nil, nil, err
	}
	template := newTemplate(pkix.Name{CommonName: "test-cluster"})
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	if err := write(folder, "ca.crt", "CERTIFICATE", signed, 0o644); err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(signed)
	return authority, key, err
}

func readAuthority(folder string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certificate, err := read(folder, "ca.crt")
	if err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, nil, err
	}
	secret, err := read(folder, "ca.key")
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(secret)
	if err != nil {
		return nil, nil, err
	}
	return authority, key.(*ecdsa.PrivateKey), nil
}

func sign(folder string, request certificateRequest, authority *x509.Certificate, signer *ecdsa.PrivateKey) error {
	key, err := newKey(folder, request.Name)
	if err != nil {
		return err
	}
	template := newTemplate(pkix.Name{CommonName: request.CommonName, Organization: request.Organizations})
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(request.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range request.Hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, authority, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	return write(folder, request.Name+".crt", "CERTIFICATE", signed, 0o644)
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // crypto/rand does not fail
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             now.Add(-time.Hour), // a machine's clock may be set back
		NotAfter:              now.Add(validity),
		BasicConstraintsValid: true,
	}
}

func newKey(folder, name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, write(folder, name+".key", "PRIVATE KEY", encoded, 0o600)
}

func read(folder, file string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file", file)
	}
	return block.Bytes, nil
}

func write(folder, file, kind string, content []byte, mode os.FileMode) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
	return os.WriteFile(filepath.Join(folder, file), text, mode)
}
