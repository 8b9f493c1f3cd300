package duramen;

import java.net.Socket;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.util.function.Supplier;
import javax.net.ssl.KeyManager;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509ExtendedTrustManager;
import org.apache.zookeeper.common.X509Util;

/**
 * TLS between members of the quorum: nobody is one without an identity of a ZooKeeper.
 *
 * Else every node's certificate would do, since one CA has signed them all. Anchors have a setting of
 * ours: ZooKeeper watches files of settings of its own, each in a thread, and of two that read both
 * files the one that read before a change could have the last word. The key is written last, so who
 * watches it alone reads what belongs together.
 * Source: docs/protocol/metadata-access.md "Members of the quorum".
 */
public final class MemberContext implements Supplier<SSLContext> {
    @Override
    public SSLContext get() {
        try {
            String prefix = "zookeeper.ssl.quorum.";
            KeyManager key = X509Util.createKeyManager(
                    System.getProperty(prefix + "keyStore.location"), "", "PEM");
            X509ExtendedTrustManager trust = (X509ExtendedTrustManager) X509Util.createTrustManager(
                    System.getProperty("zookeeper.duramen.anchors"), "", "PEM",
                    false, false, true, false, false, true);
            SSLContext context = SSLContext.getInstance("TLSv1.3");
            context.init(new KeyManager[] {key}, new TrustManager[] {new Members(trust)}, null);
            return context;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static final class Members extends X509ExtendedTrustManager {
        private final X509ExtendedTrustManager trust;

        Members(X509ExtendedTrustManager trust) {
            this.trust = trust;
        }

        private static void judge(X509Certificate[] chain) throws CertificateException {
            String identity = Identities.read(chain[0]);
            if (!Identities.role(identity).equals("zookeeper")) {
                throw new CertificateException(identity + " is no member of the quorum");
            }
        }

        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type, Socket socket)
                throws CertificateException {
            trust.checkClientTrusted(chain, type, socket);
            judge(chain);
        }

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type, Socket socket)
                throws CertificateException {
            trust.checkServerTrusted(chain, type, socket);
            judge(chain);
        }

        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type, SSLEngine engine)
                throws CertificateException {
            trust.checkClientTrusted(chain, type, engine);
            judge(chain);
        }

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type, SSLEngine engine)
                throws CertificateException {
            trust.checkServerTrusted(chain, type, engine);
            judge(chain);
        }

        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type)
                throws CertificateException {
            trust.checkClientTrusted(chain, type);
            judge(chain);
        }

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type)
                throws CertificateException {
            trust.checkServerTrusted(chain, type);
            judge(chain);
        }

        @Override
        public X509Certificate[] getAcceptedIssuers() {
            return trust.getAcceptedIssuers();
        }
    }
}
