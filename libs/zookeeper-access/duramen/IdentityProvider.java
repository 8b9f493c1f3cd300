package duramen;

import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.util.regex.Pattern;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.common.X509Exception;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.server.ServerCnxn;
import org.apache.zookeeper.server.auth.X509AuthenticationProvider;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Scheme x509 with identities for ids: rights of one identity, of a role, or of the whole cluster.
 *
 * ZooKeeper's own provider compares whole subjects, so a role could be given nothing. An id that
 * ends in a slash and a star stands for all identities that begin with what is before the star. An
 * operator is super, so that nobody can lock it out.
 * Source: docs/protocol/metadata-access.md "Who connects".
 */
public final class IdentityProvider extends X509AuthenticationProvider {
    private static final Logger LOG = LoggerFactory.getLogger(IdentityProvider.class);
    private static final Pattern EXPRESSION = Pattern.compile(
            "spiffe://[0-9a-f]{32}/(\\*|[a-z]+/(\\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63}))");

    public IdentityProvider() throws X509Exception {
        super();
    }

    @Override
    public KeeperException.Code handleAuthentication(ServerCnxn connection, byte[] data) {
        Certificate[] chain = connection.getClientCertificateChain();
        String identity;
        try {
            if (chain == null || chain.length == 0) {
                throw new CertificateException("there is no certificate");
            }
            identity = Identities.read((X509Certificate) chain[0]);
        } catch (CertificateException error) {
            LOG.warn("{} is refused: {}", connection.getRemoteSocketAddress(), error.getMessage());
            return KeeperException.Code.AUTHFAILED;
        }
        KeeperException.Code outcome = super.handleAuthentication(connection, data);
        if (outcome == KeeperException.Code.OK && Identities.role(identity).equals("operator")) {
            connection.addAuthInfo(new Id("super", identity));
        }
        return outcome;
    }

    @Override
    protected String getClientId(X509Certificate leaf) {
        try {
            return Identities.read(leaf);
        } catch (CertificateException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public boolean matches(String identity, String expression) {
        return identity.equals(expression)
                || expression.endsWith("/*")
                && identity.startsWith(expression.substring(0, expression.length() - 1));
    }

    @Override
    public boolean isValid(String expression) {
        return EXPRESSION.matcher(expression).matches();
    }
}
