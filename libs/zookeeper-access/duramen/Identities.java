package duramen;

import java.security.cert.CertificateException;
import java.security.cert.CertificateParsingException;
import java.security.cert.X509Certificate;
import java.util.Collection;
import java.util.List;
import java.util.regex.Pattern;

/**
 * The identity in a certificate, as ZooKeeper judges it.
 *
 * Source: docs/protocol/metadata-access.md "Who connects".
 */
final class Identities {
    static final String DOMAIN_PROPERTY = "zookeeper.duramen.domain";
    private static final Integer URI = 6;
    private static final Pattern FORM = Pattern.compile(
            "spiffe://[0-9a-f]{32}/(bookie|sequencer|writeproxy|readproxy|zookeeper|operator|archive"
            + "|corewriter|corereader)/[A-Za-z0-9][A-Za-z0-9._-]{0,63}");

    private Identities() {
    }

    /** The one URI of a leaf, which is an identity of this cluster; an exception for any other. */
    static String read(X509Certificate leaf) throws CertificateException {
        String found = null;
        try {
            Collection<List<?>> names = leaf.getSubjectAlternativeNames();
            for (List<?> name : names == null ? List.<List<?>>of() : names) {
                if (URI.equals(name.get(0))) {
                    if (found != null) {
                        throw new CertificateException("the certificate names two identities");
                    }
                    found = String.valueOf(name.get(1));
                }
            }
        } catch (CertificateParsingException error) {
            throw new CertificateException("the certificate's names cannot be read", error);
        }
        if (found == null || !FORM.matcher(found).matches()
                || !found.startsWith("spiffe://" + System.getProperty(DOMAIN_PROPERTY) + "/")) {
            throw new CertificateException("the certificate is of " + found);
        }
        return found;
    }

    /** The role of an identity that was read. */
    static String role(String identity) {
        return identity.split("/")[3];
    }
}
